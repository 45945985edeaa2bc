// Labels that other labels or people contradict: probably mistakes.

import { get } from "./api.js";
import { build, create, createPhoto } from "./dom.js";
import { kind } from "./kinds.js";
import { formatPercent } from "./words.js";

export function mount(root, app) {
  const { element: page, hint, list } = build("suspects");
  root.append(page);
  const cards = new Map(); // By photo. They stay in their places, so that no click is for another one.
  let version = -1;

  async function update(state) {
    if (state.version === version) return;
    version = state.version;
    await app.repeat(check);
  }

  /** Shows the list. Returns whether the classifier of the current labels is still being fitted. */
  async function check() {
    const { images, is_fitting: isFitting } = await get("suspects");
    images.forEach(follow);
    const isDone = [...cards.values()].every((card) => card.isClosed());
    const none = cards.size ? "No suspect labels are left." : "No suspect labels.";
    if (isDone) hint.textContent = isFitting ? "Checking the labels…" : none;
    else hint.textContent = "These disagree with your other labels or with other people: please look at them.";
    return isFitting;
  }

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
    const parts = build("suspect", { open: () => app.open(item), keep: () => decide(label), change: () => decide(other) });
    const { element, what, keep, change, open } = parts;
    const picture = createPhoto(item, "small");
    element.ariaLabel = open.title = item.name;
    open.ariaLabel = `Open ${item.name}`;
    open.append(picture);
    parts.label.textContent = kind.write(label);
    parts.other.textContent = kind.write(other);
    parts.share.textContent = probability === null ? " to other people" : ` (${formatPercent(probability)})`;
    keep.textContent = `It is ${kind.write(label)}`;
    change.textContent = `It is ${kind.write(other)}`;
    let isClosed = false;

    function decide(chosen) {
      if (isClosed || app.refuses(picture.isShown !== null)) return;
      app.run(async () => {
        try {
          await app.post("decide", { changes: [[image, revision, "label", chosen]] });
        } catch (error) {
          if (error.status === 409) close("Labeled elsewhere.");
          throw error;
        }
        app.announce(`${item.name}: ${kind.write(chosen)}.`, false);
        close("Labeled ", create("b", {}, kind.write(chosen)), ".");
      });
    }

    /** Asks nothing anymore, and says why. The focus stays where it is. */
    function close(...reason) {
      isClosed = true;
      what.style.minHeight = `${what.offsetHeight}px`; // The cards below stay where they are.
      what.replaceChildren(...reason);
      keep.ariaDisabled = change.ariaDisabled = "true";
    }

    return { element, revision, isClosed: () => isClosed };
  }

  return { update, onKey: () => false };
}
