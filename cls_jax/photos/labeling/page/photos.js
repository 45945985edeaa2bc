// All photos as a grid: the least confident first, and one key gives several their class.

import { post } from "./api.js";
import { createChooser, MOVED } from "./chooser.js";
import { create, createButton, formatCount, formatPercent } from "./dom.js";
import { createGrid } from "./grid.js";
import { createPace, NEXT } from "./guards.js";
import { describe as describeDecision, describeUnsaved } from "./next.js";

const SIZES = { Small: 110, Medium: 160, Large: 280 }; // Pixels, at least.
const DECISIONS = ["none", "skip"];

// What was chosen last, for the next time that the view is shown.
const chosen = {
  file: "",
  label: "",
  below: "",
  kind: "",
  size: "Medium",
  names: "",
  focused: null,
  isOpen: false, // Whether the classes are shown where there is no room beside the photos.
};

export function mount(root, app) {
  let version = -1;
  let classes = [];
  let photos = new Map(); // By image.
  const pace = createPace();
  let pressed = ""; // The last key.
  let answered = ""; // The one that has answered for the photo before the one with the focus.
  const saving = new Set(); // Images whose answers are.
  let held = new Map(); // Image → its revision when a class for it was typed, before another window's answer.
  let special = null; // The photos most like one, or those to look at, instead of all.
  let isStale = false; // Whether answers since have changed the order.

  const title = create("h2", {}, "Photos");
  const hint = create("p", { class: "hint" });
  const filters = {
    label: createFilter("Class", "label"),
    below: createFilter("Confidence", "below", [
      ["", "Any"],
      ...[50, 70, 90].map((percent) => [percent / 100, `Below ${percent}%`]),
    ]),
    kind: createFilter("Show", "kind", [
      ["", "All photos"],
      ["open", "Without an answer"],
      ["answered", "With an answer"],
      ["copies", "Look-alikes"],
    ]),
    size: createFilter("Size", "size", Object.keys(SIZES).map((name) => [name, name])),
    names: createFilter("File names", "names", [
      ["", "Hidden"],
      ["shown", "Shown"],
    ]),
  };
  const search = create("input", {
    type: "search",
    id: "filter-file",
    class: "search",
    value: chosen.file,
    autocomplete: "off",
    spellcheck: "false",
    input: () => findFiles(search.value),
    keydown: onFileKey,
  });
  const filterBar = create(
    "div",
    { class: "filters" },
    create("label", { for: search.id }, "File", search),
    ...Object.values(filters).map(({ element }) => element),
  );
  const sort = createButton({ click: () => showAll() }, "Sort again");
  const back = createButton({ click: leave }, create("kbd", {}, "Esc"), "All photos");
  const grid = createGrid({ describe, onSelect: renderPanel, onOpen: open, getMargins });
  const empty = create("p", { class: "hint", hidden: true }, "No photo matches.");

  const count = create("p", { class: "selected-count", role: "status" });
  const chooser = createChooser({
    onChoose: answer,
    onNone: () => answer(""),
    onMoved: () => app.announce(MOVED, true),
  });
  const confirm = createButton({ click: confirmAll, disabled: true }, "As suggested");
  const similar = createButton({ click: showSimilar }, create("kbd", {}, "+"), "More like this");
  const enlarge = createButton({ click: () => open(getTargets()[0]) }, "Open");
  const clearKey = create("kbd", {}, "Esc");
  const clear = createButton({ click: () => grid.select(new Set()) }, clearKey, "Clear");
  const toggle = createButton({ class: "toggle", "aria-controls": "answers", click: toggleAnswers });
  const answers = create(
    "div",
    { class: "answers", id: "answers" },
    confirm,
    chooser.element,
    create("div", { class: "others" }, chooser.none, similar, enlarge, clear),
  );
  const panel = create(
    "section",
    { class: "panel", "aria-label": "Selected photos" },
    create("div", { class: "panel-head" }, count, toggle),
    answers,
  );
  root.append(
    create(
      "div",
      { class: "photos" },
      create(
        "div",
        { class: "photos-main" },
        create("div", { class: "row-head" }, title, create("div", { class: "actions" }, sort, back)),
        hint,
        filterBar,
        empty,
        grid.element,
      ),
      panel,
    ),
  );
  grid.resize(SIZES[chosen.size]);
  grid.showNames(Boolean(chosen.names));
  showAnswers(chosen.isOpen);
  grid.element.addEventListener("focusin", pace.begin);

  /** Only a person opens or closes the classes: they must not come between a finger and a photo. */
  function toggleAnswers() {
    showAnswers(!chosen.isOpen);
  }

  function showAnswers(isOpen) {
    chosen.isOpen = isOpen;
    panel.classList.toggle("open", isOpen);
    toggle.setAttribute("aria-expanded", String(isOpen));
    toggle.textContent = isOpen ? "Close" : "Choose a class";
  }

  function createFilter(name, key, options = []) {
    const choice = create("select", { id: `filter-${key}`, change });
    setOptions(choice, options, chosen[key]);
    function change() {
      chosen[key] = choice.value;
      if (key === "size") grid.resize(SIZES[choice.value]);
      else if (key === "names") grid.showNames(Boolean(choice.value));
      else showAll();
    }
    return { choice, element: create("label", { for: choice.id }, name, choice) };
  }

  /** Shows the photos whose files have a name with this in it. */
  function findFiles(text) {
    search.value = text;
    chosen.file = text.trim();
    showAll();
  }

  function onFileKey(event) {
    if (event.key === "Enter") grid.focus();
    else if (event.key === "Escape") findFiles("");
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  async function update(state) {
    classes = state.classes;
    const labels = classes.map(({ name }) => [name, name]);
    if (!classes.some(({ name }) => name === chosen.label)) chosen.label = "";
    setOptions(filters.label.choice, [["", "All classes"], ...labels], chosen.label);
    if (state.version === version) return;
    const isFirst = version < 0;
    version = state.version;
    read(await app.get("photos"));
    if (!isFirst) {
      isStale = true;
      renderFrame();
      grid.renderCells();
      renderPanel();
    } else if (app.look) {
      enter(app.look);
      app.look = null;
      grid.focus();
    } else showAll();
  }

  /** Takes over the columns from the server. Photos that are shown stay the same objects. */
  function read(columns) {
    const before = photos;
    const targets = chooser.isChoosing() ? getTargets() : [];
    held = new Map(targets.map(({ image, revision }) => [image, held.get(image) ?? revision]));
    photos = new Map();
    columns.image.forEach((image, i) => {
      const photo = before.get(image) ?? {};
      for (const key of ["image", "name", "decision", "confidence", "revision", "copies"]) {
        photo[key] = columns[key][i];
      }
      photo.label = columns.classes[columns.label[i]] ?? "";
      photos.set(image, photo);
    });
  }

  function describe({ name, decision, label, confidence }) {
    if (decision) {
      const given = label || describeDecision(decision);
      return { name: `${name}, ${given}, your answer`, caption: `✓ ${given}`, decision };
    }
    if (!label) return { name: `${name}, no class yet`, caption: "", decision };
    const percent = formatPercent(confidence);
    return { name: `${name}, ${label}, suggested, ${percent}`, caption: `${label} ${percent}`, decision };
  }

  /** Shows the photos that the filters let through, in sections. */
  function showAll() {
    const focused = special?.source ?? grid.getCurrent()?.image ?? chosen.focused;
    special = null;
    isStale = false;
    const found = [...photos.values()].filter(matches);
    const isSure = ({ decision }) => Boolean(decision);
    const compare = (a, b) => isSure(a) - isSure(b) || a.confidence - b.confidence || a.image - b.image;
    let sections;
    if (chosen.kind === "copies") {
      found.sort((a, b) => a.copies - b.copies || a.image - b.image);
      sections = [{ title: formatTitle("Look-alikes", found), items: found }];
    } else {
      found.sort(compare);
      const groups = new Map([...classes.map(({ name }) => name), "", ...DECISIONS].map((key) => [key, []]));
      for (const photo of found) {
        groups.get(DECISIONS.includes(photo.decision) ? photo.decision : photo.label)?.push(photo);
      }
      sections = [...groups].map(([key, items]) => {
        const name = { "": "No class yet", none: "None of these", skip: "Skipped" };
        // A class may have such a name, too.
        const isClass = classes.some((known) => known.name === key) && !DECISIONS.includes(items[0]?.decision);
        return { title: formatTitle(isClass ? key : name[key], items), items };
      });
    }
    const before = grid.getSelected();
    grid.show(sections, new Set(before.map(({ image }) => image)), focused);
    const hidden = before.length - grid.getSelected().length;
    if (hidden) app.announce(`No longer selected: ${formatCount(hidden, "photo")} not shown here.`, true);
    renderFrame();
  }

  function matches({ name, decision, label, confidence, copies }) {
    if (!name.toLowerCase().includes(chosen.file.toLowerCase())) return false;
    if (chosen.label && label !== chosen.label) return false;
    if (chosen.below && (decision || confidence >= Number(chosen.below))) return false;
    if (chosen.kind === "open") return !decision;
    if (chosen.kind === "answered") return Boolean(decision);
    return chosen.kind !== "copies" || copies >= 0;
  }

  /** Shows some photos instead of all: { title, hint, sections, selected, source, label }. */
  function enter(shown) {
    special = shown;
    isStale = false;
    const sections = shown.sections.map(({ title, images }) => {
      const items = images.map((image) => photos.get(image)).filter(Boolean);
      return { title: title && formatTitle(title, items), items };
    });
    grid.show(sections, shown.selected ?? new Set());
    scrollTo(0, 0);
    renderFrame();
  }

  function leave() {
    if (!special) return;
    grid.select(new Set());
    showAll();
    grid.focus();
  }

  function showSimilar() {
    const [source] = getTargets();
    if (!source) return;
    app.run(async () => {
      const { images } = await app.get(`similar/${source.image}`);
      const { label } = source;
      const found = [source.image, ...images].map((image) => photos.get(image)).filter(Boolean);
      // What the page itself names otherwise is hardly ever right.
      const agrees = (photo) => label && !photo.decision && photo.label === label;
      const agreeing = found.filter(agrees).map(({ image }) => image);
      const others = found.filter((photo) => !agrees(photo)).map(({ image }) => image);
      enter({
        title: `More like ${source.name}`,
        hint: describeSimilar(label, agreeing.length),
        sections: [
          { title: label ? `Suggested as ${label}` : "", images: agreeing },
          { title: agreeing.length ? "Others" : "", images: others },
        ],
        selected: new Set(agreeing),
        source: source.image,
        label,
      });
      grid.focus();
    });
  }

  /** The selected photos, or else the one with the focus. */
  function getTargets() {
    const selected = grid.getSelected();
    const focused = grid.getFocused(panel.querySelector("input"));
    return selected.length ? selected : focused ? [focused] : [];
  }

  /** Gives the photos a class, "" for none of these. Returns whether it does. */
  function answer(label, adds = false) {
    const targets = getTargets();
    return record(targets, targets.map(() => label), label || describeDecision("none"), adds);
  }

  /** Gives all selected photos the class of the photo that they are like, or what is suggested. */
  function confirmAll() {
    if (special?.label && grid.getSelected().length) return answer(special.label);
    const all = getTargets();
    const targets = all.filter(({ decision, label }) => label && !decision);
    if (all.length && !targets.length) {
      app.announce("Nothing is suggested for these.", true);
      return false;
    }
    return record(targets, targets.map(({ label }) => label), "as suggested");
  }

  function record(targets, labels, text, adds = false) {
    const isAlone = !grid.getSelected().length; // The photo with the focus.
    const isSeen = !targets.length || !isAlone || grid.isSeen();
    const isSaved = targets.some(({ image }) => saving.has(image)); // Its answer may be undone first.
    if ((isSaved || !isSeen) && app.refuses(isSeen)) return false;
    if (targets.length) return save(targets, labels, text, adds, isAlone);
    app.announce("Select photos first.", true);
    return false;
  }

  function save(targets, labels, text, adds, isAlone) {
    const isPressed = panel.contains(document.activeElement) && document.activeElement.matches("button");
    answered = isAlone ? pressed : "";
    pace.answer();
    const typed = chooser.getTyped();
    if (chooser.isChoosing()) chooser.clear(); // It was typed for these photos.
    const before = { selected: grid.getSelected(), current: grid.getCurrent() };
    grid.select(new Set()); // What is selected while these are saved is for the next answer.
    const hasStayed = () => !grid.getSelected().length && grid.getCurrent() === before.current;
    const names = [...new Set(labels)].filter(Boolean);
    const changes = targets.map(({ image, revision }, i) => {
      return [image, held.get(image) ?? revision, names.indexOf(labels[i])];
    });
    held.clear(); // If it is refused, the answers of other windows are known by now.
    for (const { image } of targets) saving.add(image);
    // Others wait for their turn: what is selected by then is for the answer after them.
    app.run(async () => {
      try {
        const { gone, left_out: leftOut } = await app.post("decide_all", { labels: names, changes, adds });
        const number = targets.length - gone;
        const what = targets.length === 1 ? targets[0].name : formatCount(number, "photo");
        app.announce(`${what}: ${text}. ${leftOut}`.trim(), true);
      } catch (error) {
        if (hasStayed()) {
          grid.select(new Set(before.selected.map(({ image }) => image)));
          if (typed && names.length === 1 && error.status !== 409) chooser.type(names[0]); // Enter tries again.
        }
        throw error;
      } finally {
        for (const { image } of targets) saving.delete(image);
      }
      if (!hasStayed()) return;
      if (special?.source !== undefined) showAll();
      const isFree = document.activeElement === document.body || grid.element.contains(document.activeElement);
      grid.focus(isAlone ? 1 : 0, isFree && !isPressed);
    }, true);
    return true;
  }

  async function open(photo) {
    if (!photo) return;
    await app.run(async () => {
      const item = await post("find", { name: photo.name });
      chosen.focused = photo.image;
      app.open(item);
    });
  }

  function renderFrame() {
    title.textContent = special?.title ?? "Photos";
    hint.textContent =
      special?.hint ??
      "The least certain first. Click photos, or drag around several. Then press the key of their class.";
    back.hidden = !special;
    filterBar.hidden = Boolean(special);
    sort.hidden = Boolean(special) || !isStale;
    empty.hidden = Boolean(grid.getCurrent());
  }

  function renderPanel() {
    const selected = grid.getSelected();
    panel.classList.toggle("active", selected.length > 0);
    count.textContent = selected.length ? `${selected.length.toLocaleString("en")} selected` : "None selected";
    const number = selected.filter(({ decision, label }) => label && !decision).length;
    // Not hidden, so that no class moves under a hand.
    confirm.disabled = special?.label ? !selected.length : !number;
    const text = special?.label ? `All are ${special.label}` : `As suggested (${number.toLocaleString("en")})`;
    confirm.replaceChildren(create("kbd", {}, "↵"), create("span", { class: "name" }, text));
    clear.disabled = !selected.length;
    clearKey.hidden = Boolean(special); // Which the key leaves.
    const counts = new Map();
    for (const { label } of selected) if (label) counts.set(label, (counts.get(label) ?? 0) + 1);
    const ranked = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 9);
    chooser.update(classes, ranked.map(([label]) => ({ label, probability: 0 })));
  }

  /** What covers the window's upper and lower edge, in pixels. */
  function getMargins() {
    const cover = (element) => (["sticky", "fixed"].includes(getComputedStyle(element).position) ? element.offsetHeight : 0);
    const isBeside = panel.getBoundingClientRect().left > grid.element.getBoundingClientRect().right;
    return {
      above: 8,
      below: 8 + cover(document.querySelector("footer")) + (isBeside ? 0 : cover(panel)),
    };
  }

  function onKey(event) {
    if (event.target.matches("select")) return false;
    pressed = event.key;
    if (pressed === answered && !grid.getSelected().length && pace.getPause()) {
      app.announce(NEXT, true);
      return true;
    }
    const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
    if (chooser.isChoosing() && ["Enter", "Escape"].includes(event.key)) return chooser.onKey(event);
    if (event.key === "Escape" && special) leave();
    else if (grid.onKey(event)) return true;
    else if (hasModifier) return false;
    else if (event.key === "Enter") confirmAll();
    else if (event.key === "+") showSimilar(); // A letter would begin the name of a class.
    else return chooser.onKey(event);
    return true;
  }

  function unmount() {
    const [text, selected] = [chooser.getTyped(), grid.getSelected().length];
    const what = selected === 1 ? grid.getSelected()[0].name : formatCount(selected, "photo");
    if (text) app.announce(describeUnsaved(text, selected ? what : "a photo"), true);
    else if (selected > 1) app.announce(`No longer selected: ${what}.`, true);
    chosen.focused = grid.getCurrent()?.image ?? chosen.focused;
    grid.close();
  }

  return { update, onKey, unmount };
}

function describeSimilar(label, count) {
  if (!count) return "Select the photos that belong together. Then press the key of their class.";
  return `Deselect the photos that are not ${label}, then press Enter, or the key of another class.`;
}

function formatTitle(name, items) {
  return `${name} · ${items.length.toLocaleString("en")}`;
}

function setOptions(choice, options, value) {
  const known = [...choice.options].map((option) => option.value);
  if (known.join("\n") !== options.map(([key]) => key).join("\n")) {
    choice.replaceChildren(...options.map(([key, text]) => create("option", { value: String(key) }, text)));
  }
  choice.value = value;
}
