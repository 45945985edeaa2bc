// Labels that the other labels contradict: probably mistakes.

import { create, createButton, createPhoto, formatPercent } from "./dom.js";

const FIT_MS = 700; // Polling interval while the classifier is being fitted.

export function mount(root, app) {
  const cards = create("div", { class: "cards" });
  const hint = create("p", { class: "hint" });
  root.append(create("div", { class: "page" }, create("h2", {}, "Suspect labels"), hint, cards));
  let version = -1;
  let timer = 0;

  async function update(state) {
    if (state.version === version) return;
    version = state.version;
    await check();
  }

  /** Shows the list, and again once the classifier of the current labels is fitted. */
  async function check() {
    clearTimeout(timer);
    const { images, is_fitting: isFitting } = await app.get("suspects");
    if (!root.contains(cards)) return; // Another view is shown now.
    if (images.length) hint.textContent = "The other labels contradict these. About 1 in 3 of these is a mistake.";
    else hint.textContent = isFitting ? "Checking the labels…" : "No suspect labels.";
    cards.replaceChildren(...images.map(createCard));
    if (isFitting) timer = setTimeout(() => check().catch(app.report), FIT_MS);
  }

  function createCard(item) {
    const { image, label, revision, proposals } = item;
    const [{ label: other, probability }] = proposals;
    const picture = createPhoto(item, "small");
    const decide = (chosen) => {
      if (app.refuses(picture.isShown !== null)) return;
      app.run(async () => {
        const changes = [{ image, decision: "label", label: chosen, revision }];
        await app.post("decide", { changes });
        app.announce(`${item.name}: ${chosen}.`);
      });
    };
    return create(
      "article",
      { class: "card", "aria-label": item.name },
      createButton(
        { class: "tile", click: () => app.open(item), "aria-label": `Open ${item.name}`, title: item.name },
        picture,
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
        createButton({ click: () => decide(label) }, `It is ${label}`),
        createButton({ click: () => decide(other) }, `It is ${other}`),
      ),
    );
  }

  return { update, unmount: () => clearTimeout(timer), onKey: () => false };
}
