// Pictures for the grid: loaded a few at a time, for cells that stay in view, and kept.

import { createPhoto } from "./dom.js";

const MAX_KEPT = 800;
const MAX_AT_ONCE = 6; // A browser opens no more connections.
const SETTLE_MS = 60; // Cells that scroll past sooner ask for nothing.

export function createThumbnails() {
  const kept = new Map(); // Image → its picture. The most recently used are last.
  let waiting = []; // Cells without a picture.
  let numLoading = 0;
  let timer = 0;

  /** Puts the picture of a photo into a place, now or once it is there. */
  function fill(place, photo) {
    const picture = kept.get(photo.image);
    if (picture) keep(photo.image, picture, place);
    else waiting.push({ place, photo, time: performance.now() });
    if (!timer && waiting.length) timer = setTimeout(load, SETTLE_MS);
  }

  function keep(image, picture, place) {
    kept.delete(image);
    kept.set(image, picture);
    if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
    place.replaceChildren(picture);
  }

  function load() {
    timer = 0;
    waiting = waiting.filter(({ place }) => place.isConnected);
    const now = performance.now();
    while (numLoading < MAX_AT_ONCE) {
      const next = waiting.findIndex(({ time }) => now - time >= SETTLE_MS);
      if (next < 0) break;
      const [{ place, photo }] = waiting.splice(next, 1);
      numLoading += 1;
      const picture = createPhoto({ image: photo.image, name: "" }, "small"); // Its cell has a name.
      picture.shown.then((isShown) => {
        numLoading -= 1;
        if (isShown) keep(photo.image, picture, place);
        else place.classList.add("broken");
        load();
      });
    }
    if (waiting.length && numLoading < MAX_AT_ONCE && !timer) timer = setTimeout(load, SETTLE_MS);
  }

  return { fill };
}
