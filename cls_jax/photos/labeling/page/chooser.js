// The classes as buttons, with their keys and a search field.

import { build, create, createPhoto } from "./dom.js";
import { complete, fold, interpret, search as searchNames } from "./names.js";
import { kind as form } from "./kinds.js";
import { formatPercent } from "./words.js";

const MOVED = "The classes have changed: look at them, then press again.";
const MOVED_MS = 300; // For which a class that has just moved is not taken by a click.

/**
 * Creates the list of classes, and a button for none of them.
 * `onChoose` gets the name of a class, and whether it is a new one that was typed, and returns whether
 * it was accepted.
 * `announce` says that a click was on a class that may have come under the pointer only now.
 * `onSkip` is called for Space in the field for the first class, which has the focus unasked. There,
 * "/" means no more than elsewhere: to type a class.
 */
export function createChooser({ onChoose, onNone, announce, onSkip = () => {} }) {
  let classes = [];
  let proposals = [];
  let shown = []; // { name, isNew }
  let chosen = null; // The name of the one that Enter takes.
  let lost = ""; // The one that it took until another window deleted it. Then it takes nothing.
  let described = "";
  let movedAt = -Infinity; // When another window has changed the classes.
  const examples = new Map(); // Pictures by photo.

  const { element, search, enter, list } = build("chooser", { search: find });
  search.addEventListener("keydown", onSearchKey);
  element.addEventListener("keydown", onOwnKey);
  element.addEventListener("blur", leave);
  const { element: none, key: noneKey } = build("none");
  none.addEventListener("click", onNone);

  const getTyped = () => search.value.trim();
  const isChoosing = () => chosen !== null || lost !== "" || getTyped() !== "";
  const getNames = () => classes.map(({ name }) => name);
  const getMeaning = () => interpret(getTyped(), getNames());
  const isNew = (name) => shown.some((one) => one.name === name && one.isNew);

  /** Returns whether the class was accepted. Otherwise, what is typed next replaces what was typed. */
  function choose(name, isNew = false) {
    const isAccepted = onChoose(name, isNew);
    if (isAccepted) {
      clear();
      const button = getButton(name);
      if (button?.ariaPressed) button.scrollIntoView({ block: "nearest" });
    } else if (search.value) search.select(); // Which also gives it the focus.
    return isAccepted;
  }

  function clear() {
    search.value = "";
    search.blur();
    find();
  }

  function onSearchKey(event) {
    const { key, shiftKey } = event;
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    const isFirst = !search.value && !classes.length;
    if (key === "Enter") onEnter(event);
    else if (step) moveChosen(step);
    else if (key === "Tab" && !shiftKey) return onTab(event);
    else if (key === " " && isFirst) onSkip();
    else if (key === "/" && isFirst) return event.preventDefault();
    else if (key === "Escape") clear();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Takes or adds what the page says. Half a name only marks the class that begins so. */
  function onEnter({ shiftKey }) {
    const typed = getTyped();
    const { kind, name } = getMeaning();
    let isDone = false;
    if (shiftKey) isDone = typed !== "" && kind !== "take" && choose(typed, true);
    else if (chosen !== null) isDone = choose(chosen, isNew(chosen));
    else if (typed && kind === "mark" && !lost) {
      chosen = name;
      render();
      isDone = true;
    }
    if (isDone) element.dispatchEvent(new Event("taken", { bubbles: true }));
  }

  /** Completes what was typed. If there is nothing to complete, the key moves the focus as it does elsewhere. */
  function onTab(event) {
    const text = complete(getTyped(), getNames());
    if (!getTyped() || text === getTyped()) return;
    search.value = text;
    find();
    event.preventDefault();
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

  function moveChosen(step) {
    if (!shown.length) return;
    const place = shown.findIndex(({ name }) => name === chosen) + step;
    const next = Math.max(0, Math.min(shown.length - 1, place));
    chosen = shown[next].name;
    lost = "";
    render();
    list.children[next].scrollIntoView({ block: "nearest" });
  }

  function find() {
    chosen = null;
    lost = "";
    render();
  }

  function render() {
    const typed = getTyped();
    const { kind, name } = getMeaning();
    shown = typed ? findClasses(typed) : orderClasses();
    if (!shown.some((one) => one.name === chosen)) {
      const first = typed && !lost && ["take", "add"].includes(kind) ? name : null;
      if (chosen !== null && fold(first ?? "") !== fold(chosen)) lost = chosen;
      chosen = lost ? null : first;
    }
    const proposed = chosen ?? (typed ? null : form.propose(proposals));
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    list.replaceChildren(...shown.map((one) => createChoice(one, one.name === proposed)));
    if (focused !== null) keepFocus(focused);
    none.hidden = !classes.length;
    noneKey.hidden = begins("0");
    enter.hidden = !typed && chosen === null && !lost;
    enter.textContent = describeEnter(typed);
  }

  const getButton = (name) => [...list.querySelectorAll("button")].find(({ dataset }) => dataset.name === name);

  function keepFocus(name) {
    const button = getButton(name);
    if (!button) element.tabIndex = -1;
    (button ?? element).focus({ preventScroll: true });
  }

  function describeEnter(typed) {
    if (lost) return `There is no class “${lost}” anymore. Arrow keys choose another.`;
    const { kind, name, begun } = getMeaning();
    const adds = `Shift Enter: new ${form.noun} “${typed}”`;
    const isHalf = typed && ["mark", "guess"].includes(kind);
    if (chosen === null) return kind === "mark" ? `Enter chooses ${name} · ${adds}` : `${begun.length} ${form.nouns} start with this: arrow keys choose one · ${adds}`;
    if (isHalf && !isNew(chosen)) return `Enter: ${chosen} · ${adds}`;
    const others = shown.length > 1 ? " Arrow keys choose another." : "";
    return `Enter ${isNew(chosen) ? `adds the new ${form.noun}` : "takes"} “${chosen}”.${others}`;
  }

  function createChoice({ name, isNew: adds }, isProposed) {
    const probability = proposals.find(({ label }) => label === name)?.probability ?? 0;
    const known = classes.find((one) => one.name === name) ?? {};
    const { key: own = "", pressed = null, isGuess = false } = known;
    const key = getTyped() || begins(own) ? "" : own; // What is typed may contain it.
    const press = () => (performance.now() - movedAt < MOVED_MS ? announce(MOVED) : choose(name, adds));
    const { element: choice, button, bar, key: chip, label, share } = build("choice", { button: press });
    button.dataset.name = name;
    button.ariaPressed = pressed;
    button.classList.toggle("guess", isGuess);
    button.classList.toggle("proposed", isProposed);
    button.classList.toggle("keyed", isProposed && key !== "");
    bar.style.setProperty("--share", probability);
    chip.textContent = isProposed && key === "" ? "↵" : key;
    label.append(adds ? `New ${form.noun} “${name}”` : name, ...describeClass(known));
    if (isGuess) label.append(create("span", { class: "visually-hidden" }, ", suggested"));
    if (probability) share.textContent = formatPercent(probability);
    return choice;
  }

  function describeClass({ description, example }) {
    const parts = description ? [create("span", { class: "note" }, description)] : [];
    if (!Number.isInteger(example)) return parts;
    if (!examples.has(example)) examples.set(example, createPhoto({ image: example, name: "" }, "small"));
    return [examples.get(example), ...parts];
  }

  /** In one order, by their keys. Those without a key come last. */
  function orderClasses() {
    const place = ({ key }) => key || "zz"; // After all digits and letters.
    return [...classes].sort((a, b) => place(a).localeCompare(place(b)));
  }

  /** Whether a key begins to type a class: a letter, or a digit with which another class begins. */
  function begins(key) {
    const isDigit = /^\d$/.test(key);
    const isOwn = classes.some((known) => known.key === key);
    return isDigit
      ? classes.some(({ name, key: own }) => name.startsWith(key) && own !== key)
      : /^\p{L}$/u.test(key) && !isOwn;
  }

  function findClasses(typed) {
    const { kind, begun } = getMeaning();
    const found = searchNames(typed, getNames()).map((name) => ({ name }));
    if (kind !== "take") found.splice(begun.length, 0, { name: typed, isNew: true });
    return found;
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
      search.placeholder = classes.length ? `Search or add a ${form.noun}` : `Type a ${form.noun}`;
      render();
    },
    /** Handles a key that was pressed outside of all fields; returns whether it did. */
    onKey(event) {
      const { key } = event;
      const withKey = classes.find((known) => known.key === key);
      if (key === "Enter" && isChoosing()) onEnter(event);
      else if (key === "Escape" && isChoosing()) clear();
      else if (key === "Enter" && form.propose(proposals)) choose(form.propose(proposals));
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
    getTyped,
    /** Types for a person who has done so before. */
    type(text) {
      search.value = text;
      find();
      search.focus();
    },
    /** Whether a class was typed or chosen with the arrow keys. */
    isChoosing,
    clear,
  };
}
