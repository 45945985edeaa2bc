// Words and numbers that several views say in the same way.

import { kind } from "./kinds.js";

export function formatPercent(share) {
  return `${Math.round(100 * share)}%`;
}

export function formatCount(count, noun, plural = `${noun}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;
}

/** The name of a photo, or how many there are without some that are gone. */
export function namePhotos(photos, gone = 0) {
  return photos.length === 1 ? photos[0].name : formatCount(photos.length - gone, "photo");
}

export function describeAnswer({ label, decision }) {
  return kind.write(label) || ({ none: "none of these", skip: "skipped" }[decision] ?? "no label");
}

/** What became of a class that was typed, and its photo no longer shown. */
export function describeUnsaved(text, name) {
  return `“${text}” was typed for ${name} and was not saved.`;
}

/** What is so again of photos whose answers were undone. `was` and `now` are null if they differ, and `changed` says it then if it is not empty. */
export function describeUndone(name, { count, was, now }, changed) {
  const what = count === 1 ? `${name} is` : `${formatCount(count, "photo")} are`;
  if (now?.decision) return `${what} ${describeAnswer(now)} again`;
  return now && was ? `${what} no longer ${describeAnswer(was)}` : changed || formatCount(count, "answer");
}

/** What an undo has changed about the classes, "" if nothing. */
export function describeChanged(before, after) {
  const find = ({ name }, all) => all.find((one) => one.name === name);
  const back = after.find((one) => !find(one, before));
  if (back) return `${back.name} is a ${kind.noun} again`;
  const removed = before.find((one) => !find(one, after));
  if (removed) return `${removed.name} is no longer a ${kind.noun}`;
  for (const what of ["description", "example", "key"]) {
    const changed = before.find((one) => find(one, after)[what] !== one[what]);
    if (changed) return `the ${what} of ${changed.name}`;
  }
  return "";
}
