// Labels that the other labels contradict: probably mistakes.

import { create, createButton, createPhoto, formatPercent } from "./dom.js";

export function mount(root, app) {
  const cards = create("div", { class: "cards" });
  const hint = create("p", { class: "hint" });
  root.append(create("div", { class: "page" }, create("h2", {}, "Suspect labels"), hint, cards));
  let version = -1;

  async function update(state) {
    if (state.version === version) return;
    version = state.version;
    const { images } = await app.get("suspects");
    hint.textContent = images.length
      ? "The other labels contradict these. Most likely mistakes first."
      : "No suspect labels.";
    cards.replaceChildren(...images.map(createCard));
  }

  function createCard(item) {
    const { image, label, revision, proposals } = item;
    const [{ label: other, probability }] = proposals;
    const decide = (chosen) =>
      app.run(async () => {
        const changes = [{ image, decision: "label", label: chosen, revision }];
        await app.post("decide", { changes });
        app.announce(`${item.name}: ${chosen}.`);
      });
    return create(
      "article",
      { class: "card", "aria-label": item.name },
      createButton(
        { class: "tile", click: () => app.open(item), "aria-label": `Open ${item.name}` },
        createPhoto(item, "small"),
      ),
      create(
        "p",
        {},
        "Labeled ",
        create("b", {}, label),
        ", looks like ",
        create("b", {}, other),
        ` (${formatPercent(probability)})`,
      ),
      create(
        "div",
        { class: "others" },
        createButton({ click: () => decide(label), "aria-label": `Keep ${label}` }, "Keep"),
        createButton(
          { class: "primary", click: () => decide(other), "aria-label": `Change to ${other}` },
          "Change",
        ),
      ),
    );
  }

  return { update, onKey: () => false };
}
