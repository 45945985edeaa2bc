// The most confident proposals of each class: one click confirms a row.

import { create, createButton, createPhoto, formatPercent } from "./dom.js";

export function mount(root, app) {
  const rows = create("div", { class: "rows" });
  const hint = create("p", { class: "hint" });
  root.append(create("div", { class: "page" }, create("h2", {}, "Check"), hint, rows));
  let version = -1;
  // Marks survive updates from other windows.
  const wrong = new Set();

  async function update(state) {
    if (state.version === version) return;
    version = state.version;
    const { rows: found } = await app.get("check");
    const filled = found.filter((row) => row.images.length);
    const isEarly = state.classes.filter(({ count }) => count).length < 2;
    const none = isEarly ? "Photos appear here once two classes have labels." : "No photos left to check.";
    hint.textContent = filled.length ? "Click the wrong photos, then confirm the rest of the row." : none;
    // Keep the focus in its row when the photos change.
    const focused = document.activeElement?.closest("[data-label]")?.dataset.label;
    rows.replaceChildren(...filled.map(createRow));
    const row = [...rows.children].find(({ dataset }) => dataset.label === focused);
    row?.querySelector(".confirm").focus();
  }

  function createRow({ label, images }) {
    const confirm = createButton({ class: "primary confirm", click: confirmRow });
    const pictures = images.map((item) => createPhoto(item, "small"));
    const tiles = images.map(createTile);

    function createTile(item, i) {
      const tile = createButton(
        { class: "tile", "aria-pressed": String(wrong.has(item.image)), click: toggle },
        pictures[i],
        create("span", { class: "share" }, formatPercent(item.proposals[0].probability)),
      );
      tile.setAttribute("aria-label", `${item.name} is not ${label}`);
      tile.title = item.name;
      function toggle() {
        if (!wrong.delete(item.image)) wrong.add(item.image);
        tile.setAttribute("aria-pressed", String(wrong.has(item.image)));
        describeButton();
      }
      return tile;
    }

    function describeButton() {
      const count = images.filter(({ image }) => !wrong.has(image)).length;
      confirm.textContent = count ? `Confirm ${count}` : "All wrong";
      confirm.setAttribute("aria-label", `${confirm.textContent}: ${label}`);
    }

    function confirmRow() {
      if (app.refuses(pictures.every(({ isShown }) => isShown !== null))) return;
      // Only displayed photos are confirmed.
      const right = images.filter(({ image }, i) => !wrong.has(image) && pictures[i].isShown);
      const marked = images.filter(({ image }) => wrong.has(image)).map(({ image }) => image);
      app.run(async () => {
        if (marked.length) await app.post("mark", { images: marked, label });
        if (right.length) {
          const changes = right.map(({ image, revision }) => {
            return { image, decision: "label", label, revision };
          });
          const { left_out: leftOut } = await app.post("decide", { changes });
          if (leftOut) app.announce(leftOut, true);
          else app.announce(`${right.length} labeled ${label}.`);
        }
        for (const image of marked) wrong.delete(image);
      });
    }

    describeButton();
    return create(
      "section",
      { class: "row", "data-label": label, "aria-label": label },
      create("div", { class: "row-head" }, create("h3", {}, label), confirm),
      create("div", { class: "tiles" }, ...tiles),
    );
  }

  return { update, onKey: () => false };
}
