// All photos as a grid: the least confident first, and one key gives several their class.

import { get, post } from "./api.js";
import { createChooser } from "./chooser.js";
import { build, create } from "./dom.js";
import { createGrid } from "./grid.js";
import { createPace, NEXT } from "./guards.js";
import { arrange, describe, formatTitle, read } from "./listing.js";
import { kind } from "./kinds.js";
import { createSaver } from "./saving.js";
import { describeUnsaved, formatCount, namePhotos } from "./words.js";

const FILTERS = ["file", "label", "below", "kind"];
const SIZES = { Small: 110, Medium: 160, Large: 280 }; // Pixels, at least.

let view = null; // What is chosen in it stays while another view is shown.

export function mount(root, app) {
  view ??= createView(app);
  root.append(view.element);
  view.enter();
  return view;
}

function createView(app) {
  let version = -1;
  let loading = null; // The photos of that version.
  let classes = [];
  let photos = new Map(); // By image.
  let special = null; // The photos most like one, or those to look at, instead of all.
  let listed = null; // The names of the classes in the filter.
  let isStale = false; // Whether answers since have changed the order.
  let isEntered = false; // Whether the view has come and shows nothing yet.
  const pace = createPace();
  let pressed = ""; // The last key.
  let answered = ""; // The one that has answered for the photo before the one with the ring.

  const parts = build("photos", {
    file: showAll,
    label: showAll,
    below: showAll,
    kind: showAll,
    size: resize,
    sort: showAll,
    back: leave,
    toggle: toggleAnswers,
    confirm: confirmAll,
    similar: showSimilar,
    enlarge: () => open(grid.getTargets()[0]),
    clear: () => grid.clear(),
  });
  const { element, panel, confirm, count } = parts;
  const grid = createGrid({ describe, onSelect: renderPanel, onOpen: open, getMargins });
  const chooser = createChooser({
    onChoose: answer,
    onNone: () => answer(""),
    announce: app.announce,
  });
  const saver = createSaver(app, { chooser, grid });
  parts.empty.after(grid.element);
  confirm.after(chooser.element);
  parts.similar.before(chooser.none);
  // Not Enter: what is typed next may be for the field.
  parts.file.addEventListener("keydown", ({ key }) => key === "ArrowDown" && grid.focus());
  grid.element.addEventListener("focusin", pace.begin);

  function enter() {
    isEntered = true;
    resize();
  }

  /** Only a person opens or closes the classes: they must not come between a finger and a photo. */
  function toggleAnswers() {
    const isOpen = panel.classList.toggle("open");
    parts.toggle.ariaExpanded = isOpen;
    parts.toggle.textContent = isOpen ? "Close" : `Choose a ${kind.noun}`;
  }

  function resize() {
    grid.resize(SIZES[parts.size.value]);
  }

  const find = (images) => images.map((image) => photos.get(image)).filter(Boolean);

  function listClasses(names) {
    if (names.join("\n") === listed) return;
    listed = names.join("\n");
    const { value } = parts.label;
    const createOption = (name) => create("option", { value: name, selected: name === value }, name || `All ${kind.nouns}`);
    parts.label.replaceChildren(...["", ...names].map(createOption));
  }

  async function update(state) {
    classes = state.classes;
    listClasses(classes.map(({ name }) => name));
    const hasChanged = state.version !== version;
    if (hasChanged) loading = load();
    version = state.version;
    await loading; // Whoever asks meanwhile waits, too.
    const isDone = special?.isAsked && find(special.sections[0].images).every(({ decision }) => decision);
    if (isDone && (app.isBack || !isEntered)) return app.show("result"); // Which says so.
    if (isEntered) begin();
    else if (hasChanged) {
      isStale = true;
      renderFrame();
      grid.renderCells();
      renderPanel();
    }
  }

  async function load() {
    try {
      const columns = await get("photos");
      if (photos.size && columns.version < app.state.version) return; // Newer ones are asked for.
      saver.hold(chooser.isChoosing() ? grid.getTargets() : []);
      photos = read(columns, photos);
    } catch (error) {
      version = -1; // The next update tries again.
      throw error;
    }
  }

  function begin() {
    isEntered = false;
    const { look, isBack } = app;
    if (look) show(look);
    else if (isBack) grid.renderCells();
    else showAll({ isFresh: true });
    renderPanel();
    if (look || isBack) grid.focusCell();
    app.look = null;
  }

  function showAll({ isFresh = false } = {}) {
    const focused = isFresh ? null : special?.source ?? grid.getCurrent()?.image;
    const filters = Object.fromEntries(FILTERS.map((key) => [key, parts[key].value.trim()]));
    const before = grid.getSelected();
    special = null;
    isStale = false;
    grid.show(arrange(photos.values(), classes.map(({ name }) => name), filters), { selected: before, focused });
    const hidden = before.size - grid.getSelected().size;
    if (hidden) app.announce(`No longer selected: ${formatCount(hidden, "photo")} not shown here.`);
    renderFrame();
  }

  /** Shows some photos instead of all: { title, hint, sections, selected, source, isAsked }. */
  function show(shown) {
    special = shown;
    isStale = false;
    const sections = shown.sections.map(({ title, images }) => {
      const items = find(images);
      return { title: title && formatTitle(title, items), items };
    });
    grid.show(sections, { selected: shown.selected, hasRing: true });
    scrollTo(0, 0);
    renderFrame();
  }

  function leave() {
    grid.clear();
    // The filters were chosen for another list than the one that was opened elsewhere.
    if (special.source === undefined) for (const key of FILTERS) parts[key].value = "";
    showAll();
    grid.focus();
  }

  function showSimilar() {
    const [source] = grid.getTargets();
    if (!source) return;
    app.run(async () => {
      const { images } = await get(`similar/${source.image}`);
      const { label } = source;
      const found = find([source.image, ...images]);
      // What the page itself names otherwise is hardly ever right.
      const agrees = (photo) => label && !photo.decision && photo.label === label;
      const list = (isWanted) => found.filter(isWanted).map(({ image }) => image);
      const agreeing = list(agrees);
      show({
        title: `More like ${source.name}`,
        hint: agreeing.length
          ? `Deselect the photos that are not ${kind.write(label)}. The others get this class, or another one.`
          : "Select the photos that belong together, and give them their class.",
        sections: [
          { title: `Suggested as ${kind.write(label)}`, images: agreeing },
          { title: "Others", images: list((photo) => !agrees(photo)) },
        ],
        selected: agreeing,
        source: source.image,
      });
      grid.focusCell();
    });
  }

  /** Gives the photos a class, "" for none of these. Returns whether it does. */
  function answer(label, adds = false) {
    const targets = grid.getTargets();
    const { labels, text, waits } = kind.give(targets, label, classes.map(({ name }) => name));
    return record(targets, labels, text, { adds, waits });
  }

  function confirmAll() {
    const targets = grid.getTargets().filter(isSuggested);
    if (targets.length || !grid.getTargets().length) return record(targets, targets.map(({ label }) => label), "as suggested");
    app.announce("Nothing is suggested for these.");
    return false;
  }

  function record(targets, labels, text, { adds = false, waits = false } = {}) {
    const selected = grid.getSelected();
    const isAlone = !selected.size;
    if (!saver.accepts(targets, text, isAlone)) return false;
    const isFree = document.activeElement === document.body || grid.element.contains(document.activeElement);
    answered = isAlone && !waits ? pressed : "";
    pace.answer();
    saver.save(targets, labels, { text, adds }, () => {
      if (waits) return grid.select(selected);
      if (special?.source !== undefined) showAll();
      if (isAlone) grid.focus(1, isFree);
    });
    return true;
  }

  /** The next key is for the photos whose answers were undone, and may come before these are loaded. */
  function onUndone(changes) {
    for (const [image, revision, decision, label] of changes) {
      if (photos.has(image)) Object.assign(photos.get(image), { revision, decision, label });
    }
    grid.goTo(changes.map(([image]) => image));
  }

  async function open(photo) {
    if (photo) await app.run(async () => app.open(await post("find", { name: photo.name })));
  }

  function renderFrame() {
    parts.title.textContent = special?.title ?? "Photos";
    parts.hint.textContent = special?.hint ?? kind.hint;
    parts.back.hidden = !special;
    parts.place.textContent = special?.source === undefined ? "All photos" : "Back";
    parts.filters.hidden = special;
    parts.sort.hidden = special || !isStale;
    parts.empty.hidden = grid.getCurrent();
  }

  function renderPanel() {
    const [targets, selected] = [grid.getTargets(), grid.getSelected().size];
    panel.classList.toggle("active", targets.length > 0);
    count.textContent = selected ? `${selected.toLocaleString("en")} selected` : targets[0]?.name ?? "No photo chosen";
    const suggested = targets.filter(isSuggested);
    const labels = new Set(suggested.map(({ label }) => label));
    // Not hidden, so that no class moves under a hand.
    confirm.disabled = !suggested.length;
    const [only] = labels.size === 1 ? labels : ["As suggested"];
    parts.suggestion.textContent = `${kind.write(only)} (${suggested.length.toLocaleString("en")})`;
    parts.backKey.hidden = selected;
    parts.clearKey.hidden = special && !selected;
    parts.similar.disabled = parts.enlarge.disabled = parts.clear.disabled = !targets.length;
    chooser.update(kind.mark(classes, targets), []);
  }

  /** What covers the window's upper and lower edge, in pixels. */
  function getMargins() {
    const cover = (one) => (["sticky", "fixed"].includes(getComputedStyle(one).position) ? one.offsetHeight : 0);
    const isBeside = panel.getBoundingClientRect().left > grid.element.getBoundingClientRect().right;
    return {
      above: 8 + cover(document.querySelector("header")),
      below: 8 + cover(document.querySelector("footer")) + (isBeside ? 0 : cover(panel)),
    };
  }

  function onKey(event) {
    if (event.target.matches("select")) return false;
    pressed = event.key;
    const isAlone = !grid.getSelected().size;
    const isChosen = chooser.isChoosing() && ["Enter", "Escape"].includes(pressed);
    if (pressed === answered && isAlone && pace.getPause()) app.announce(NEXT);
    else if (isChosen) return chooser.onKey(event);
    else if (pressed === "Escape" && special && isAlone) leave();
    else if (grid.onKey(event)) return true;
    else if (pressed === "Enter") confirmAll();
    else if (pressed === "+") showSimilar(); // A letter would begin the name of a class.
    else return chooser.onKey(event);
    return true;
  }

  function unmount() {
    const text = chooser.getTyped();
    if (!text) return;
    app.announce(describeUnsaved(text, namePhotos(grid.getTargets())));
    chooser.clear();
  }

  return { element, enter, update, onKey, unmount, onUndone, selectAll: () => grid.select() };
}

function isSuggested({ decision, label }) {
  return label && !decision;
}
