// Labels that the other labels contradict: probably mistakes.

import { create, createButton, createPhoto, formatPercent } from "./dom.js";

const FIT_MS = 700; // Polling interval while the classifier is being fitted.

export function mount(root, app) {
  const cards = create("div", { class: "cards" });
  const hint = create("p", { class: "hint" });
  root.append(create("div", { class: "page" }, create("h2", {}, "Suspect labels"), hint, cards));
  let shown = []; // The photos of the cards, in order.
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
    const isChanged = follow(images);
    if (shown.length) hint.textContent = "The other labels contradict these. About 1 in 3 of these is a mistake.";
    else hint.textContent = isFitting ? "Checking the labels…" : "No suspect labels.";
    if (isChanged) cards.replaceChildren(...shown.map(createCard));
    if (isFitting) timer = setTimeout(() => check().catch(app.report), FIT_MS);
  }

  /**
   * Adds what is found to the cards, and returns whether these change. They keep their places and what
   * they ask until they are answered: a click was for what was there when it was aimed at.
   */
  function follow(images) {
    const before = JSON.stringify(shown.map(({ image, revision }) => [image, revision]));
    const found = new Map(images.map((item) => [item.image, item]));
    const isLater = ({ image, revision }) => (found.get(image)?.revision ?? revision) !== revision;
    const kept = shown.map((item) => (isLater(item) ? found.get(item.image) : item));
    const added = images.filter(({ image }) => !kept.some((item) => item.image === image));
    shown = [...kept, ...added];
    const isSame = cards.children.length === shown.length;
    return !isSame || before !== JSON.stringify(shown.map(({ image, revision }) => [image, revision]));
  }

  function createCard(item) {
    const { image, label, revision, proposals } = item;
    const [{ label: other, probability }] = proposals;
    const picture = createPhoto(item, "small");
    const decide = (chosen) => {
      if (app.refuses(picture.isShown !== null)) return;
      app.run(async () => {
        shown = shown.filter((one) => one.image !== image);
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
