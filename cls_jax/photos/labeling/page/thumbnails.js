// Pictures for the grid: loaded a few at a time, for cells that stay in view, and kept.

import { createPhoto } from "./dom.js";

const MAX_KEPT = 800;
const MAX_AT_ONCE = 6; // A browser opens no more connections.
const SETTLE_MS = 60; // Cells that scroll past sooner ask for nothing.

export function createThumbnails() {
  const kept = new Map(); // Image → its picture. The most recently used are last.
  let waiting = []; // Cells that have stayed, without a picture.
  let numLoading = 0;

  function fill(place, photo) {
    const picture = kept.get(photo.image);
    if (picture) return keep(photo.image, picture, place);
    setTimeout(() => {
      waiting.push({ place, photo });
      load();
    }, SETTLE_MS);
  }

  function keep(image, picture, place) {
    kept.delete(image);
    kept.set(image, picture);
    if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
    place.replaceChildren(picture);
  }

  function load() {
    waiting = waiting.filter(({ place }) => place.isConnected);
    while (numLoading < MAX_AT_ONCE && waiting.length) {
      const { place, photo } = waiting.shift();
      numLoading += 1;
      const picture = createPhoto({ image: photo.image, name: "" }, "small"); // Its cell has a name.
      picture.shown.then((isShown) => {
        numLoading -= 1;
        if (isShown) keep(photo.image, picture, place);
        else place.classList.add("broken");
        load();
      });
    }
  }

  return { fill };
}
