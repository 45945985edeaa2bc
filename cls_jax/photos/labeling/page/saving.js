// Answers for photos of the grid, several of which may be saved one after the other.

import { SECOND_MS } from "./guards.js";
import { MANY } from "./selection.js";
import { formatCount, namePhotos } from "./words.js";

/** Takes answers for photos of a grid, whose class may have been typed into a chooser. */
export function createSaver(app, { chooser, grid }) {
  const saving = new Set(); // Images whose answers are.
  let held = new Map(); // Image → its revision when a class for it was typed, before another window's answer.
  let asked = { request: "", time: 0 }; // What a second press does, for more photos than one looks at.

  /** Whether it is clear which photos get an answer, and that they were seen. Says so otherwise. */
  function accepts(targets, text, isAlone) {
    const isSeen = !targets.length || !isAlone || grid.isSeen();
    const isSaved = targets.some(({ image }) => saving.has(image)); // Its answer may be undone first.
    if ((isSaved || !isSeen) && app.refuses(isSeen)) return false;
    const request = JSON.stringify([text, targets.map(({ image }) => image)]);
    const isAsked = request === asked.request && performance.now() - asked.time > SECOND_MS;
    const isClear = targets.length > 0 && (targets.length <= MANY || isAsked);
    asked = { request: isClear ? "" : request, time: performance.now() };
    const many = `${formatCount(targets.length, "photo")}: ${text}? Press the same key again to label all ${targets.length.toLocaleString("en")}.`;
    if (!isClear) app.announce(targets.length ? many : "Choose photos first.");
    return isClear;
  }

  /** Saves labels of photos, "" for none of these, and then calls `onSaved` if nothing else was chosen since. */
  function save(targets, labels, { text, adds }, onSaved) {
    const typed = chooser.getTyped();
    if (chooser.isChoosing()) chooser.clear(); // It was typed for these photos.
    const before = { selected: grid.getSelected(), current: grid.getCurrent() };
    if (before.selected.size) grid.clear(); // What is selected while these are saved is for the next answer.
    const hasStayed = () => !grid.getSelected().size && grid.getCurrent() === before.current;
    const changes = targets.map(({ image, revision }, i) => {
      return [image, held.get(image) ?? revision, labels[i] ? "label" : "none", labels[i]];
    });
    held.clear(); // If it is refused, the answers of other windows are known by now.
    for (const { image } of targets) saving.add(image);
    // Others wait for their turn: what is selected by then is for the answer after them.
    app.run(async () => {
      try {
        const { gone, left_out: leftOut } = await app.post("decide", { changes, adds });
        // The next key may come before the photos are loaded again.
        targets.forEach((photo, i) => {
          const [, revision, decision, label] = changes[i];
          Object.assign(photo, { decision, label, revision: revision + 1 });
        });
        app.announce(`${namePhotos(targets, gone)}: ${text}. ${leftOut}`.trim());
      } catch (error) {
        if (hasStayed()) {
          grid.select(before.selected);
          if (typed && labels[0] && error.status !== 409) chooser.type(labels[0]); // Enter tries again.
        }
        throw error;
      } finally {
        for (const { image } of targets) saving.delete(image);
      }
      if (hasStayed()) onSaved();
    }, true);
  }

  return {
    accepts,
    save,
    hold: (targets) => {
      held = new Map(targets.map(({ image, revision }) => [image, held.get(image) ?? revision]));
    },
  };
}
