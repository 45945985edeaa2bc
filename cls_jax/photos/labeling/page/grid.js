// A grid of any number of photos, of which only those in view are elements of the page.

import { create } from "./dom.js";
import { createThumbnails } from "./thumbnails.js";

const GAP = 8; // Pixels between cells.
const HEAD = 3; // Heights in rem.
const CAPTION = 1.6;
const OVERSCAN = 400; // Pixels above and below the window that are drawn ahead.
const DRAG_PIXELS = 5; // From which a press becomes a rectangle.
const EDGE = 50; // Pixels from the window's edge where a rectangle scrolls.

/**
 * Creates a grid. `describe` gives the name, caption and decision of a photo for its cell, `onSelect`
 * is called when the selection has changed, and `onOpen` gets a photo that is clicked twice.
 */
export function createGrid({ describe, onSelect, onOpen, getMargins }) {
  const thumbnails = createThumbnails();
  const element = create("div", {
    class: "grid",
    role: "grid",
    "aria-label": "Photos",
    "aria-multiselectable": "true",
    click: onClick,
    dblclick: onDoubleClick,
    pointerdown: onPress,
  });
  const band = create("div", { class: "band", role: "presentation", hidden: true });
  const resized = new ResizeObserver(() => lay(true));
  resized.observe(element);
  addEventListener("scroll", ask, { passive: true });
  addEventListener("resize", ask, { passive: true });

  let sections = [];
  let photos = []; // Those of all sections.
  let rows = []; // { top, height, first, count } or, above a section, { top, height, title }.
  let rowOf = []; // Place of a photo → its row.
  let size = 150;
  let hasNames = false; // Whether the name of its file is below each photo.
  let columns = 1;
  let cell = 0; // Width of a cell.
  let width = 0;
  let selected = new Set(); // Images.
  let kept = new Set(); // Those selected before the range from the anchor.
  let anchor = 0;
  let current = 0; // Place of the photo for the keyboard.
  let isAt = false; // Whether it has had the focus.
  let frame = 0;
  let hasDragged = false;
  let clicked = []; // Places of the last two clicks on these photos.
  const shown = new Map(); // Row → its element.

  /** Computes all rows. */
  function lay(isResize = false) {
    if (!element.isConnected || (isResize && element.clientWidth === width)) return;
    width = element.clientWidth;
    const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
    columns = Math.max(1, Math.floor((width + GAP) / (size + GAP)));
    cell = (width - GAP * (columns - 1)) / columns;
    rows = [];
    rowOf = new Int32Array(photos.length);
    let top = 0;
    let first = 0;
    for (const { title, items } of sections) {
      if (title) {
        rows.push({ top, height: HEAD * rem, title });
        top += HEAD * rem;
      }
      const height = cell + CAPTION * rem * (hasNames ? 2 : 1);
      for (let start = 0; start < items.length; start += columns) {
        const count = Math.min(columns, items.length - start);
        rowOf.fill(rows.length, first + start, first + start + count);
        rows.push({ top, height, first: first + start, count });
        top += height + GAP;
      }
      first += items.length;
    }
    element.hidden = !rows.length;
    element.style.height = `${top}px`;
    element.style.setProperty("--columns", columns);
    element.setAttribute("aria-rowcount", rows.length);
    element.setAttribute("aria-colcount", columns);
    const hadFocus = element.contains(document.activeElement);
    for (const row of shown.values()) row.remove();
    shown.clear();
    if (isResize && photos.length) reveal(current);
    draw();
    if (hadFocus) focusCell();
  }

  function ask() {
    frame ||= requestAnimationFrame(draw);
  }

  /** Draws the rows in view, and the one with the focus. */
  function draw() {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!element.isConnected) return;
    const top = -element.getBoundingClientRect().top;
    const first = Math.max(0, findRow(top - OVERSCAN));
    const last = findRow(top + innerHeight + OVERSCAN);
    const wanted = rows.length ? [...new Set([...range(first, last), rowOf[current] ?? 0])] : [];
    wanted.sort((a, b) => a - b);
    const isWanted = new Set(wanted);
    for (const [i, row] of shown) {
      if (isWanted.has(i)) continue;
      row.remove();
      shown.delete(i);
    }
    let before = null;
    for (const i of wanted) {
      if (!shown.has(i)) {
        const row = createRow(i);
        shown.set(i, row);
        if (before) before.after(row);
        else element.prepend(row);
        fillRow(i);
      }
      before = shown.get(i);
    }
    if (band.parentNode !== element) element.append(band);
  }

  /** The last row that begins above a height. */
  function findRow(y) {
    let [low, high] = [0, rows.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle].top <= y) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  function createRow(i) {
    const { top, height, title, first, count } = rows[i];
    const cells = title
      ? [create("div", { role: "rowheader", class: "name" }, title)]
      : Array.from({ length: count }, (_, column) => createCell(first + column, column));
    const row = create("div", { role: "row", class: title ? "head" : "line", "aria-rowindex": i + 1 }, ...cells);
    row.style.height = `${height}px`;
    row.style.transform = `translateY(${top}px)`;
    return row;
  }

  function createCell(i, column) {
    const properties = { role: "gridcell", class: "cell", "aria-colindex": column + 1, focus: () => onFocus(i) };
    const mark = create("span", { class: "mark", "aria-hidden": "true" }, "✓");
    const caption = create("span", { class: "caption" });
    const file = create("span", { class: "caption file" }, photos[i].name);
    const cell = create("div", properties, create("div", { class: "thumb" }), mark, caption, file);
    cell.dataset.place = i;
    renderCell(cell, i);
    return cell;
  }

  function onFocus(i) {
    current = i;
    isAt = true;
  }

  function fillRow(i) {
    for (const cell of shown.get(i).querySelectorAll(".cell")) {
      thumbnails.fill(cell.firstChild, photos[cell.dataset.place]);
    }
  }

  function renderCell(cell, i) {
    const photo = photos[i];
    const { name, caption, decision } = describe(photo);
    cell.setAttribute("aria-label", name);
    cell.title = photo.name;
    cell.setAttribute("aria-selected", String(selected.has(photo.image)));
    cell.tabIndex = i === current ? 0 : -1;
    cell.dataset.decision = decision;
    cell.querySelector(".caption").textContent = caption;
  }

  /** Renders the cells in view again. */
  function renderCells() {
    for (const cell of element.querySelectorAll(".cell")) renderCell(cell, Number(cell.dataset.place));
  }

  function select(images) {
    selected = images;
    renderCells();
    onSelect();
  }

  /** Selects what was selected before, and all from the anchor to the current photo. */
  function selectRange() {
    const places = range(Math.min(anchor, current), Math.max(anchor, current));
    select(new Set([...kept, ...places.map((i) => photos[i].image)]));
  }

  function toggle(i) {
    const images = new Set(selected);
    if (!images.delete(photos[i].image)) images.add(photos[i].image);
    setAnchor(i, images);
    select(images);
  }

  function setAnchor(i, images = selected) {
    anchor = i;
    kept = new Set(images);
  }

  /** Moves to a photo, scrolls to it and gives it the focus, unless something else keeps that. */
  function move(i, isRange = false, takesFocus = true) {
    current = Math.max(0, Math.min(photos.length - 1, i));
    reveal(current);
    draw();
    renderCells();
    if (takesFocus) focusCell();
    if (isRange) selectRange();
    else setAnchor(current);
  }

  function focusCell() {
    element.querySelector(`[data-place="${current}"]`)?.focus({ preventScroll: true });
  }

  function reveal(i) {
    const row = rows[rowOf[i]];
    if (!row) return;
    const { above, below } = getMargins();
    const top = element.getBoundingClientRect().top + row.top;
    const over = top + row.height - (innerHeight - below);
    if (top < above) scrollBy(0, top - above);
    else if (over > 0) scrollBy(0, over);
  }

  /** The photo above or below another one, by rows of photos. */
  function findBeside(i, step) {
    let row = rowOf[i] + step;
    while (rows[row]?.title) row += step;
    if (!rows[row]) return i;
    const column = i - rows[rowOf[i]].first;
    return rows[row].first + Math.min(column, rows[row].count - 1);
  }

  function findPage(i, step) {
    const count = Math.max(1, Math.floor(innerHeight / (cell + GAP)) - 1);
    return range(1, count).reduce((place) => findBeside(place, step), i);
  }

  function onKey(event) {
    if (!photos.length || event.altKey) return false;
    if (event.ctrlKey || event.metaKey) {
      if (event.key.toLowerCase() !== "a") return false;
      select(new Set(photos.map(({ image }) => image)));
      return true;
    }
    const moves = {
      ArrowLeft: () => current - 1,
      ArrowRight: () => current + 1,
      ArrowUp: () => findBeside(current, -1),
      ArrowDown: () => findBeside(current, 1),
      PageUp: () => findPage(current, -1),
      PageDown: () => findPage(current, 1),
      Home: () => 0,
      End: () => photos.length - 1,
    };
    if (moves[event.key]) {
      // The first key goes to the photo that the keyboard is at.
      const isInside = element.contains(document.activeElement);
      move(isInside || event.shiftKey ? moves[event.key]() : current, event.shiftKey);
    } else if (event.key === " ") toggle(current);
    else if (event.key === "Escape" && selected.size) select(new Set());
    else return false;
    return true;
  }

  /** The place of the photo of an event, or -1. */
  function find(event) {
    return Number(event.target.closest(".cell")?.dataset.place ?? -1);
  }

  function onClick(event) {
    const i = find(event);
    if (i < 0 || hasDragged) return;
    clicked = [...clicked.slice(-1), i];
    current = i;
    if (event.shiftKey) selectRange();
    else toggle(i);
  }

  /** Opens a photo. The first of the clicks may have been on the button that has shown it. */
  function onDoubleClick(event) {
    const i = find(event);
    if (i >= 0 && clicked.length === 2 && clicked.every((place) => place === i)) onOpen(photos[i]);
  }

  /** Selects what a rectangle touches. A finger scrolls instead. */
  function onPress(press) {
    hasDragged = false;
    if (press.pointerType === "touch" || press.button !== 0) return;
    const before = new Set(selected);
    const start = locate(press);
    let last = press;
    let scrolling = 0;

    function onMove(event) {
      last = event;
      if (!hasDragged && Math.hypot(event.clientX - press.clientX, event.clientY - press.clientY) < DRAG_PIXELS) return;
      if (!hasDragged) element.setPointerCapture(press.pointerId);
      hasDragged = true;
      stretch();
      scrolling ||= requestAnimationFrame(scroll);
    }

    function scroll() {
      const over = last.clientY - (innerHeight - getMargins().below - EDGE);
      const under = last.clientY - (getMargins().above + EDGE);
      const distance = Math.max(0, over) + Math.min(0, under);
      if (distance) {
        scrollBy(0, distance / 3);
        stretch();
      }
      scrolling = requestAnimationFrame(scroll);
    }

    function stretch() {
      const end = locate(last);
      const [left, right] = [Math.min(start.x, end.x), Math.max(start.x, end.x)];
      const [top, bottom] = [Math.min(start.y, end.y), Math.max(start.y, end.y)];
      band.hidden = false;
      band.style.transform = `translate(${left}px, ${top}px)`;
      band.style.width = `${right - left}px`;
      band.style.height = `${bottom - top}px`;
      select(new Set([...before, ...findInside(left, right, top, bottom)]));
    }

    function stop() {
      cancelAnimationFrame(scrolling);
      band.hidden = true;
      if (hasDragged) setAnchor(current);
      element.removeEventListener("pointermove", onMove);
      for (const type of ["pointerup", "pointercancel"]) element.removeEventListener(type, stop);
    }

    element.addEventListener("pointermove", onMove);
    for (const type of ["pointerup", "pointercancel"]) element.addEventListener(type, stop);
  }

  function locate({ clientX, clientY }) {
    const { left, top } = element.getBoundingClientRect();
    return { x: clientX - left, y: clientY - top };
  }

  /** The images whose cells are touched by a rectangle. */
  function findInside(left, right, top, bottom) {
    const images = [];
    for (const i of range(Math.max(0, findRow(top)), findRow(bottom))) {
      const row = rows[i];
      if (row.title || row.top + row.height < top) continue;
      for (const column of range(0, row.count - 1)) {
        const x = column * (cell + GAP);
        if (x <= right && x + cell >= left) images.push(photos[row.first + column].image);
      }
    }
    return images;
  }

  return {
    element,
    onKey,
    /** Shows photos in sections. Selected are those of `images` that are among them. */
    show(newSections, images = new Set(), focused = null) {
      sections = newSections.filter(({ items }) => items.length);
      photos = sections.flatMap(({ items }) => items);
      const place = photos.findIndex(({ image }) => image === focused);
      current = Math.max(0, place);
      isAt = false;
      clicked = [];
      selected = new Set(photos.map(({ image }) => image).filter((image) => images.has(image)));
      setAnchor(current);
      lay();
      if (place >= 0) reveal(current);
      onSelect();
    },
    resize(newSize) {
      size = newSize;
      lay();
      reveal(current);
    },
    /** Shows the name of its file below each photo, or does not. */
    showNames(areShown) {
      hasNames = areShown;
      element.classList.toggle("named", areShown);
      lay();
      reveal(current);
    },
    renderCells,
    /** The selected photos, in their order. */
    getSelected: () => photos.filter(({ image }) => selected.has(image)),
    select,
    /** The photo that has the focus, or had it before `field`. Otherwise null. */
    getFocused(field) {
      const focused = document.activeElement;
      return element.contains(focused) || (isAt && focused === field) ? photos[current] : null;
    },
    /** Whether the picture of that photo is there. */
    isSeen: () => Boolean(element.querySelector(`[data-place="${current}"] img`)),
    getCurrent: () => photos[current] ?? null,
    /** Moves some photos on and gives that one the focus, unless something else keeps that. */
    focus: (step = 0, takesFocus = true) => photos.length && move(current + step, false, takesFocus),
    close() {
      resized.disconnect();
      removeEventListener("scroll", ask);
      removeEventListener("resize", ask);
    },
  };
}

function range(first, last) {
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
}
