// The classes as buttons, with number keys and a search field.

import { create, createButton, createPhoto, formatPercent } from "./dom.js";
import { fold } from "./names.js";

export const MOVED = "The classes have changed: look at them, then press again.";
const MOVED_MS = 300; // For which a class that has just moved is not taken by a click.
const NUM_KEYS = 9; // More classes than that are ordered by how probable they are.

/**
 * Creates the list of classes, and a button for none of them.
 * `onChoose` gets the name of a class, and whether it is a new one that was typed, and returns whether
 * it was accepted.
 * `onMoved` is called for a click on a class that may have come under the pointer only now.
 * `onSkip` is called for Space in the field for the first class, which has the focus unasked. There,
 * "/" means no more than elsewhere: to type a class.
 */
export function createChooser({ onChoose, onNone, onMoved, onSkip = () => {} }) {
  let classes = [];
  let proposals = [];
  let shown = [];
  let chosen = null; // The name of the one that Enter takes.
  let lost = ""; // The one that it took until another window deleted it. Then it takes nothing.
  let described = "";
  let movedAt = -Infinity; // When another window has changed the classes.
  const examples = new Map(); // Pictures by photo.

  const search = create("input", {
    type: "search",
    class: "search",
    "data-class-field": true,
    "aria-label": "Search or add a class",
    "aria-controls": "classes",
    "aria-describedby": "enter",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "255",
    input: find,
    keydown: onSearchKey,
  });
  const enter = create("p", { id: "enter", class: "enter", role: "status", hidden: true });
  const list = create("ol", { id: "classes", class: "classes", "aria-label": "Classes" });
  const element = create("div", { class: "chooser", keydown: onOwnKey, blur: leave }, search, enter, list);
  const noneKey = create("kbd", {}, "0");
  const none = createButton({ click: onNone }, noneKey, "None of these");

  /** Returns whether the class was accepted. Otherwise, what is typed next replaces what was typed. */
  function choose(name) {
    const isAccepted = onChoose(name, shown.some((one) => one.name === name && one.isNew));
    if (isAccepted) clear();
    else if (search.value) search.select(); // Which also gives it the focus.
    return isAccepted;
  }

  function clear() {
    search.value = "";
    search.blur();
    find();
  }

  function onSearchKey(event) {
    if (event.key === "Enter") takeChosen();
    else if (["ArrowDown", "ArrowUp"].includes(event.key)) moveChosen(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === " " && !search.value && !classes.length) onSkip();
    else if (event.key === "/" && !search.value && !classes.length) return event.preventDefault();
    else if (event.key === "Escape") clear();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The focus is here if the button that had it is gone, and Space and Enter then do nothing. */
  function onOwnKey(event) {
    if (event.target !== element || ![" ", "Enter"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** A click must not give it the focus. */
  function leave() {
    element.removeAttribute("tabindex");
  }

  function takeChosen() {
    if (chosen !== null && choose(chosen)) element.dispatchEvent(new Event("taken", { bubbles: true }));
  }

  function moveChosen(step) {
    if (!shown.length) return;
    const place = shown.findIndex(({ name }) => name === chosen) + step;
    const next = Math.max(0, Math.min(shown.length - 1, place));
    chosen = shown[next].name;
    lost = "";
    render();
    list.children[next].scrollIntoView({ block: "nearest" });
  }

  /** Looks for what was typed. Enter then takes the class of exactly that name, or adds it. */
  function find() {
    chosen = null;
    lost = "";
    render();
  }

  function render() {
    const typed = search.value.trim();
    shown = typed ? findClasses(typed) : orderClasses();
    if (!shown.some(({ name }) => name === chosen)) {
      const first = typed && !lost ? shown[0].name : null;
      if (chosen !== null && fold(first ?? "") !== fold(chosen)) lost = chosen;
      chosen = lost ? null : first;
    }
    const first = chosen ?? proposals[0]?.label;
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    list.replaceChildren(
      ...shown.map(({ name, isNew }) => {
        const probability = proposals.find((proposal) => proposal.label === name)?.probability ?? 0;
        const button = createClassButton(name, probability, isNew, name === first);
        return create("li", {}, button);
      }),
    );
    if (focused !== null) keepFocus(focused);
    none.hidden = !classes.length;
    noneKey.hidden = begins("0");
    enter.hidden = chosen === null && !lost;
    if (lost) enter.textContent = `There is no class “${lost}” anymore. Arrow keys choose another.`;
    else if (chosen !== null) enter.textContent = describeEnter(shown.find(({ name }) => name === chosen));
  }

  /** Keeps the focus on the button of a class, whose press then means the same. */
  function keepFocus(name) {
    const button = [...list.querySelectorAll("button")].find(({ dataset }) => dataset.name === name);
    if (!button) element.tabIndex = -1;
    (button ?? element).focus({ preventScroll: true });
  }

  function describeEnter({ name, isNew }) {
    const others = shown.length > 1 ? " Arrow keys choose another." : "";
    return `Enter ${isNew ? "adds the new class" : "takes"} “${name}”.${others}`;
  }

  function createClassButton(name, probability, isNew, isFirst) {
    const bar = create("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", probability);
    const own = classes.find((known) => known.name === name)?.key ?? "";
    const key = search.value.trim() || begins(own) ? "" : own; // Digits are part of a name.
    return createButton(
      { click: () => (performance.now() - movedAt < MOVED_MS ? onMoved() : choose(name)), class: isFirst ? "class proposed" : "class", "data-name": name },
      bar,
      create("kbd", {}, isFirst && key === "" ? "↵" : key),
      create("span", { class: "name" }, isNew ? `Add “${name}”` : name, ...describeClass(name)),
      create("span", { class: "share" }, probability ? formatPercent(probability) : ""),
    );
  }

  function describeClass(name) {
    const { description, example } = classes.find((known) => known.name === name) ?? {};
    const parts = description ? [create("span", { class: "note" }, description)] : [];
    if (!Number.isInteger(example)) return parts;
    if (!examples.has(example)) examples.set(example, createPhoto({ image: example, name: "" }, "small"));
    return [examples.get(example), ...parts];
  }

  function orderClasses() {
    if (classes.length <= NUM_KEYS) {
      const place = ({ key }) => Number(key || NUM_KEYS + 1); // Those without a key come last.
      return [...classes].sort((a, b) => place(a) - place(b));
    }
    const rank = (name) => {
      const position = proposals.findIndex((proposal) => proposal.label === name);
      return position < 0 ? Infinity : position;
    };
    const ranked = classes.map(({ name }, i) => ({ name, rank: rank(name), i }));
    return ranked.sort((a, b) => (a.rank === b.rank ? a.i - b.i : a.rank - b.rank));
  }

  /** Whether a key begins to type a class: a letter, or a digit with which another class begins. */
  function begins(key) {
    const isDigit = /^\d$/.test(key);
    return isDigit
      ? classes.some(({ name, key: own }) => name.startsWith(key) && own !== key)
      : /^\p{L}$/u.test(key);
  }

  /** First the class of exactly that name or a new one, then those that begin so or contain it. */
  function findClasses(typed) {
    const wanted = fold(typed);
    const matches = classes.filter(({ name }) => fold(name).includes(wanted));
    const rank = ({ name }) => (fold(name) === wanted ? 0 : fold(name).startsWith(wanted) ? 1 : 2);
    const found = matches.sort((a, b) => rank(a) - rank(b));
    return found.length && !rank(found[0]) ? found : [{ name: typed, isNew: true }, ...found];
  }

  return {
    element,
    none,
    update(newClasses, newProposals) {
      // A list that is replaced between the press and the release of a button loses the click.
      const text = JSON.stringify([newClasses, newProposals]);
      if (text === described) return;
      described = text;
      const haveLeft = classes.some(({ name }) => !newClasses.some((known) => known.name === name));
      if (haveLeft) movedAt = performance.now();
      classes = newClasses;
      proposals = newProposals;
      search.placeholder = classes.length ? "Search or add a class (press /)" : "Type a class and press Enter";
      render();
    },
    /** Handles a key that was pressed outside of all fields; returns whether it did. */
    onKey({ key, ctrlKey, metaKey, altKey }) {
      if (ctrlKey || metaKey || altKey) return false;
      const withKey = classes.find((known) => known.key === key);
      if (key === "Enter" && chosen !== null) takeChosen();
      else if (key === "Escape" && (chosen !== null || lost)) clear();
      else if (key === "Enter" && proposals.length && !lost) choose(proposals[0].label);
      else if (begins(key) || key === "/") {
        search.focus();
        return key === "/"; // The browser writes any other into the field.
      } else if (withKey) choose(withKey.name);
      else if (key === "0" && classes.length) onNone();
      else return false;
      return true;
    },
    focus: () => search.focus(),
    hasFocus: () => document.activeElement === search,
    getTyped: () => search.value.trim(),
    /** Types for a person who has done so before. */
    type(text) {
      search.value = text;
      find();
      search.focus();
    },
    /** Whether a class was typed or chosen with the arrow keys, which Enter takes. */
    isChoosing: () => chosen !== null || lost !== "",
    clear,
  };
}
