// The most confident proposals of each class: one click confirms a row.

import { get } from "./api.js";
import { build, createPhoto } from "./dom.js";
import { kind } from "./kinds.js";
import { formatPercent } from "./words.js";

const FRESH_MS = 1500; // During which photos that have just come are looked at, and not confirmed.
const FRESH = "These photos are new: look at them, then press again.";

const marks = new Map(); // Class → the images of photos that were marked as wrong and not confirmed.

export function mount(root, app) {
  const { element: page, hint, list } = build("confirm");
  root.append(page);
  const rows = new Map(); // By class. They stay in their places, as do their photos until they are confirmed.
  let version = -1;

  async function update(state) {
    if (state.version === version) return;
    version = state.version;
    const { rows: found } = await get("check");
    for (const { label, images } of found) {
      if (rows.has(label) || !images.length) continue;
      rows.set(label, createRow(label));
      list.append(rows.get(label).element);
    }
    const names = state.classes.map(({ name }) => name);
    for (const [label, row] of rows) {
      const images = found.find((one) => one.label === label)?.images ?? [];
      if (kind.split(label).every((name) => names.includes(name))) row.follow(images);
      else row.close();
    }
    const isEarly = state.classes.filter(({ count }) => count).length < 2;
    const none = isEarly ? `Photos appear here once two ${kind.nouns} have labels.` : "No photos left to confirm.";
    const isFilled = [...rows.values()].some((row) => row.isFilled());
    hint.textContent = isFilled ? kind.confirm : none;
  }

  function createRow(label) {
    let images = []; // Those that are asked about.
    const wrong = marks.get(label) ?? new Set();
    marks.set(label, wrong);
    const confirmed = new Set(); // Here, and not undone as far as known.
    const { element, title, confirm, tiles, note } = build("confirm-row", { confirm: confirmRow });
    const text = kind.write(label);
    title.textContent = text;
    element.dataset.label = label;
    element.ariaLabel = text;

    /** Shows what was found, if nothing is asked about or what was confirmed has been undone. */
    function follow(found) {
      const isUndone = found.some(({ image }) => confirmed.has(image));
      if (images.length && !isUndone) return;
      const isFirst = !tiles.children.length;
      // The rows below stay where they are.
      tiles.style.minHeight = `${tiles.offsetHeight}px`;
      images = found.map((item) => ({ ...item, picture: createPhoto(item, "small") }));
      for (const { image } of images) confirmed.delete(image);
      tiles.replaceChildren(...images.map(createTile));
      describe("No photos left to confirm.");
      if (!isFirst) keepFresh(images);
    }

    async function keepFresh(shown) {
      confirm.ariaDisabled = "true";
      await Promise.all(shown.map(({ picture }) => picture.shown));
      await new Promise((resolve) => setTimeout(resolve, FRESH_MS));
      if (images === shown) confirm.ariaDisabled = "false";
    }

    /** Asks nothing anymore: another window has deleted the class. */
    function close() {
      images = [];
      tiles.replaceChildren();
      describe(`There is no ${kind.noun} ${text} anymore.`);
    }

    function createTile({ image, name, proposals, picture }) {
      const { element: tile, share } = build("tile");
      tile.prepend(picture);
      share.textContent = formatPercent(proposals[0].probability);
      tile.ariaLabel = `${name} is not ${text}`;
      tile.title = name;
      tile.ariaPressed = wrong.has(image);
      tile.addEventListener("click", () => {
        if (!wrong.delete(image)) wrong.add(image);
        tile.ariaPressed = wrong.has(image);
        describe();
      });
      return tile;
    }

    function describe(none = "") {
      const count = images.filter(({ image }) => !wrong.has(image)).length;
      confirm.textContent = count ? `Confirm ${count}` : "All wrong";
      confirm.ariaLabel = `${confirm.textContent}: ${text}`;
      confirm.hidden = !images.length;
      note.hidden = images.length;
      note.textContent = none;
    }

    function confirmRow() {
      const isFresh = confirm.ariaDisabled === "true";
      const areShown = images.every(({ picture }) => picture.isShown !== null);
      if (app.refuses(areShown && !isFresh, isFresh ? FRESH : undefined)) return;
      // Only displayed photos are confirmed.
      const right = images.filter(({ image, picture }) => !wrong.has(image) && picture.isShown);
      const marked = images.filter(({ image }) => wrong.has(image)).map(({ image }) => image);
      app.run(async () => {
        try {
          await save(right, marked);
        } catch (error) {
          if (error.status === 409) release(); // Another window has labeled one of them.
          throw error;
        }
        release();
        for (const { image } of right) confirmed.add(image);
      });
    }

    async function save(right, marked) {
      if (marked.length) await app.post("mark", { images: marked, label });
      if (!right.length) return;
      const changes = right.map(({ image, revision }) => [image, revision, "label", label]);
      const { left_out: leftOut } = await app.post("decide", { changes });
      app.announce(leftOut || `${right.length} labeled ${text}.`, leftOut);
    }

    function release() {
      images = [];
      wrong.clear();
      version = -1;
    }

    return { element, follow, close, isFilled: () => images.length };
  }

  return { update, onKey: () => false };
}
