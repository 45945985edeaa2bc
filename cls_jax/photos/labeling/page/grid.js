// A grid of any number of photos, of which only those in view are elements of the page.

import { drawBand } from "./band.js";
import { build, create } from "./dom.js";
import { findBeside, findInside, findRow, lay } from "./layout.js";
import * as selection from "./selection.js";
import { createThumbnails } from "./thumbnails.js";

const GAP = 8; // Pixels between cells.
const HEAD = 3; // Heights in rem.
const CAPTION = 1.6;
const OVERSCAN = 400; // Pixels above and below the window that are drawn ahead.

/**
 * Creates a grid. `describe` gives the name, caption and decision of a photo for its cell, `onSelect`
 * is called when the keys are for other photos, and `onOpen` gets a photo that is clicked twice.
 */
export function createGrid({ describe, onSelect, onOpen, getMargins }) {
  const thumbnails = createThumbnails();
  const { element, band } = build("grid");
  let sections = [];
  let photos = []; // Those of all sections.
  let chosen = selection.start([]);
  let layout = lay([], {});
  let size = 150;
  let columns = 1;
  let cell = 0; // Width of a cell.
  let width = 0;
  let frame = 0;
  let hasDragged = false;
  let isPressed = false; // Whether a pointer is what moves the focus.
  let clicked = []; // Places of the last two clicks on these photos.
  const shown = new Map(); // Row → its element.

  element.addEventListener("click", onClick);
  element.addEventListener("dblclick", onDoubleClick);
  element.addEventListener("pointerdown", onPress);
  new ResizeObserver(() => element.clientWidth !== width && arrange(true)).observe(element);
  const ask = () => (frame ||= requestAnimationFrame(draw));
  for (const type of ["scroll", "resize"]) addEventListener(type, ask, { passive: true });

  function arrange(isResize = false) {
    if (!element.isConnected) return;
    width = element.clientWidth;
    const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
    columns = Math.max(1, Math.floor((width + GAP) / (size + GAP)));
    cell = (width - GAP * (columns - 1)) / columns;
    layout = lay(sections, { columns, height: cell + CAPTION * rem, head: HEAD * rem, gap: GAP });
    element.hidden = !photos.length;
    element.style.height = `${layout.height}px`;
    element.style.setProperty("--columns", columns);
    element.ariaRowCount = layout.rows.length;
    element.ariaColCount = columns;
    const hadFocus = element.contains(document.activeElement);
    for (const row of shown.values()) row.remove();
    shown.clear();
    if (isResize) reveal();
    draw();
    if (hadFocus) focusCell();
  }

  /** Draws the rows in view, and the one that the keyboard is at. */
  function draw() {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!element.isConnected) return;
    const { rows, rowOf } = layout;
    const top = -element.getBoundingClientRect().top;
    const last = findRow(rows, top + innerHeight + OVERSCAN);
    const wanted = new Set(photos.length ? [rowOf[chosen.place]] : []);
    for (let i = Math.max(0, findRow(rows, top - OVERSCAN)); i <= last; i++) wanted.add(i);
    for (const [i, row] of shown) {
      if (wanted.has(i)) continue;
      row.remove();
      shown.delete(i);
    }
    let before = null;
    for (const i of [...wanted].sort((a, b) => a - b)) {
      if (!shown.has(i)) {
        const row = createRow(i);
        shown.set(i, row);
        if (before) before.after(row);
        else element.prepend(row);
        for (const one of row.querySelectorAll(".cell")) thumbnails.fill(one.firstChild, photos[one.dataset.place]);
      }
      before = shown.get(i);
    }
  }

  function createRow(i) {
    const { top, height, title, first, count } = layout.rows[i];
    const cells = title
      ? [create("div", { role: "rowheader", class: "name" }, title)]
      : Array.from({ length: count }, (_, column) => createCell(first + column, column));
    const row = create("div", { role: "row", class: title ? "head" : "line", "aria-rowindex": i + 1 }, ...cells);
    row.style.height = `${height}px`;
    row.style.transform = `translateY(${top}px)`;
    return row;
  }

  function createCell(i, column) {
    const { element: cell } = build("cell");
    cell.ariaColIndex = column + 1;
    cell.addEventListener("focus", () => onFocus(i));
    cell.dataset.place = i;
    renderCell(cell, i);
    return cell;
  }

  /** By a key, such as Tab. What a pointer does is said by its click. */
  function onFocus(i) {
    const hasRing = i === chosen.place && chosen.hasRing;
    if (!isPressed && !hasRing) choose(selection.move(chosen, i));
  }

  function renderCell(cell, i) {
    const photo = photos[i];
    const { name, caption, decision } = describe(photo);
    const { selected, place, hasRing } = chosen;
    cell.ariaLabel = name;
    cell.title = photo.name;
    cell.ariaSelected = selected.has(photo.image);
    cell.ariaCurrent = i === place && hasRing && !selected.size;
    cell.tabIndex = i === place ? 0 : -1;
    cell.dataset.decision = decision;
    cell.querySelector(".caption").textContent = caption;
  }

  function renderCells() {
    for (const cell of element.querySelectorAll(".cell")) renderCell(cell, Number(cell.dataset.place));
  }

  function choose(value) {
    chosen = value;
    renderCells();
    onSelect();
  }

  /** Scrolls to the photo that the keyboard is at and gives it the focus, unless something else keeps that. */
  function follow(value, takesFocus = true) {
    chosen = value;
    reveal();
    draw();
    choose(value);
    if (takesFocus) focusCell();
  }

  function focusCell() {
    findCell()?.focus({ preventScroll: true });
  }

  function findCell() {
    return element.querySelector(`[data-place="${chosen.place}"]`);
  }

  function reveal() {
    const row = layout.rows[layout.rowOf[chosen.place]];
    if (!row) return;
    const { above, below } = getMargins();
    const top = element.getBoundingClientRect().top + row.top;
    const over = top + row.height - (innerHeight - below);
    if (top < above) scrollBy(0, top - above);
    else if (over > 0) scrollBy(0, over);
  }

  function onKey({ key, shiftKey }) {
    isPressed = false;
    if (!photos.length) return false;
    const { place, hasRing, selected } = chosen;
    const page = Math.max(1, Math.floor(innerHeight / (cell + GAP)) - 1);
    const moves = {
      ArrowLeft: () => place - 1,
      ArrowRight: () => place + 1,
      ArrowUp: () => findBeside(layout, place, -1),
      ArrowDown: () => findBeside(layout, place, 1),
      PageUp: () => findBeside(layout, place, -page),
      PageDown: () => findBeside(layout, place, page),
      Home: () => 0,
      End: () => photos.length - 1,
    };
    if (moves[key]) {
      // The first key goes to the photo that the keyboard is at.
      const to = hasRing || selected.size || shiftKey ? moves[key]() : place;
      const moved = selection.move(chosen, to);
      follow(shiftKey ? { ...selection.stretch(chosen, moved.place), hasRing: true } : moved);
    } else if (key === " ") choose(selection.toggle(chosen, place, true));
    else if (key === "Escape" && selection.getTargets(chosen).length) choose(selection.clear(chosen));
    else return false;
    return true;
  }

  function find(event) {
    return Number(event.target.closest(".cell")?.dataset.place ?? -1);
  }

  function onClick(event) {
    const i = find(event);
    isPressed = false;
    if (i < 0 || hasDragged) return;
    clicked = [...clicked.slice(-1), i];
    choose(event.shiftKey ? selection.stretch(chosen, i) : selection.toggle(chosen, i));
  }

  /** Opens a photo. The first of the clicks may have been on the button that has shown it. */
  function onDoubleClick(event) {
    const i = find(event);
    if (i >= 0 && clicked.length === 2 && clicked.every((place) => place === i)) onOpen(photos[i]);
  }

  function onPress(press) {
    hasDragged = false;
    isPressed = true;
    if (press.pointerType === "touch" || press.button !== 0) return;
    const before = chosen.selected;
    drawBand(press, element, band, getMargins, (box) => {
      hasDragged = true;
      const touched = findInside(layout, box, cell, GAP).map((i) => photos[i].image);
      choose({ ...selection.select(chosen, [...before, ...touched]), hasRing: false });
    });
  }

  return {
    element,
    onKey,
    draw,
    show(newSections, { selected = [], focused = null, hasRing = false } = {}) {
      sections = newSections.filter(({ items }) => items.length);
      photos = sections.flatMap(({ items }) => items);
      const place = Math.max(0, photos.findIndex(({ image }) => image === focused));
      clicked = [];
      chosen = selection.start(photos.map(({ image }) => image), { selected, place, hasRing });
      arrange();
      if (place) reveal();
      onSelect();
    },
    resize(newSize) {
      size = newSize;
      arrange();
      reveal();
    },
    renderCells,
    /** Images that are selected, whether they are more than the one with the ring or not. */
    getSelected: () => chosen.selected,
    getTargets() {
      const targets = new Set(selection.getTargets(chosen));
      return photos.filter(({ image }) => targets.has(image));
    },
    select: (images = chosen.images) => choose(selection.select(chosen, images)),
    /** Selects nothing, and leaves no ring. */
    clear: () => choose({ ...selection.select(chosen, []), hasRing: false }),
    /** Whether the picture of the photo with the ring is there. */
    isSeen: () => findCell()?.querySelector("img"),
    getCurrent: () => photos[chosen.place] ?? null,
    /** Puts the ring some photos further and gives that one the focus, unless something else keeps that. */
    focus: (step = 0, takesFocus = true) => photos.length && follow(selection.move(chosen, chosen.place + step), takesFocus),
    /** Puts the ring on an image and selects no other one, or selects several: of those that are here. */
    goTo(images) {
      const known = new Set(chosen.images);
      const found = images.filter((image) => known.has(image));
      if (found.length > 1) choose(selection.select(chosen, found));
      else if (found.length) follow(selection.move(selection.clear(chosen), chosen.images.indexOf(found[0])));
    },
    focusCell,
  };
}
