// Labels that the other labels contradict: probably mistakes.

import { create, createButton, createPhoto, formatPercent } from "./dom.js";

const FIT_MS = 700; // Polling interval while the classifier is being fitted.

export function mount(root, app) {
  const list = create("div", { class: "cards" });
  const hint = create("p", { class: "hint" });
  root.append(create("div", { class: "page" }, create("h2", {}, "Suspect labels"), hint, list));
  const cards = new Map(); // By photo. They stay in their places, so that no click is for another one.
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
    if (!root.contains(list)) return; // Another view is shown now.
    images.forEach(follow);
    const isDone = [...cards.values()].every((card) => card.isClosed());
    const none = cards.size ? "No suspect labels are left." : "No suspect labels.";
    if (isDone) hint.textContent = isFitting ? "Checking the labels…" : none;
    else hint.textContent = "The other labels contradict these. About 1 in 3 of these is a mistake.";
    if (isFitting) timer = setTimeout(() => check().catch(app.report), FIT_MS);
  }

  /** Adds a photo, or asks about it again if its label has changed. */
  function follow(item) {
    const before = cards.get(item.image);
    if (before?.revision === item.revision) return;
    const card = createCard(item);
    cards.set(item.image, card);
    if (before) before.element.replaceWith(card.element);
    else list.append(card.element);
  }

  function createCard(item) {
    const { image, label, revision, proposals } = item;
    const [{ label: other, probability }] = proposals;
    const picture = createPhoto(item, "small");
    const what = create(
      "p",
      {},
      "Labeled ",
      create("b", {}, label),
      ", looks like ",
      create("b", {}, other),
      ` (${formatPercent(probability)})`,
    );
    const buttons = [label, other].map((name) => createButton({ click: () => decide(name) }, `It is ${name}`));
    let isClosed = false;

    function decide(chosen) {
      if (isClosed || app.refuses(picture.isShown !== null)) return;
      app.run(async () => {
        try {
          const changes = [{ image, decision: "label", label: chosen, revision }];
          await app.post("decide", { changes });
        } catch (error) {
          if (error.status === 409) close("Labeled elsewhere.");
          throw error;
        }
        app.announce(`${item.name}: ${chosen}.`);
        close("Labeled ", create("b", {}, chosen), ".");
      });
    }

    /** Asks nothing anymore, and says why. The focus stays where it is. */
    function close(...reason) {
      isClosed = true;
      what.style.minHeight = `${what.offsetHeight}px`; // The cards below stay where they are.
      what.replaceChildren(...reason);
      for (const button of buttons) button.setAttribute("aria-disabled", "true");
    }

    const element = create(
      "article",
      { class: "card", "aria-label": item.name },
      createButton(
        { class: "tile", click: () => app.open(item), "aria-label": `Open ${item.name}`, title: item.name },
        picture,
      ),
      what,
      create("div", { class: "others" }, ...buttons),
    );
    return { element, revision, isClosed: () => isClosed };
  }

  return { update, unmount: () => clearTimeout(timer), onKey: () => false };
}
