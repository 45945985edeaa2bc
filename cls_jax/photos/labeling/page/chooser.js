// The classes as buttons, with number keys and a search field.

import { create, createButton, createPhoto, formatPercent } from "./dom.js";

const NUM_KEYS = 9;

/**
 * Creates the list of classes.
 * `onChoose` gets the name of a class, which may be new, and returns whether it was accepted.
 * `onSkip` is called for Space in the field for the first class, which has the focus unasked.
 */
export function createChooser(onChoose, onSkip) {
  let classes = [];
  let proposals = [];
  let shown = [];
  let described = "";
  const examples = new Map(); // Pictures by photo.

  const search = create("input", {
    type: "search",
    class: "search",
    "aria-label": "Search or add a class",
    "aria-controls": "classes",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "255",
    input: render,
    keydown: onSearchKey,
  });
  const list = create("ol", { id: "classes", class: "classes", "aria-label": "Classes" });
  const element = create("div", { class: "chooser" }, search, list);

  function choose(name) {
    if (!onChoose(name)) return;
    search.value = "";
    search.blur();
  }

  function onSearchKey(event) {
    if (event.key === "Enter" && shown.length) choose(shown[0].name);
    else if (event.key === " " && !search.value && !classes.length) onSkip();
    else if (event.key === "Escape") {
      search.value = "";
      search.blur();
      render();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function render() {
    const typed = search.value.trim();
    shown = typed ? findClasses(typed) : orderClasses();
    list.replaceChildren(
      ...shown.map(({ name, isNew }, i) => {
        const probability = proposals.find((proposal) => proposal.label === name)?.probability ?? 0;
        const isFirst = typed ? i === 0 : name === proposals[0]?.label;
        const button = createClassButton(name, probability, isNew, isFirst, typed ? null : i);
        return create("li", {}, button);
      }),
    );
  }

  function createClassButton(name, probability, isNew, isFirst, position) {
    const bar = create("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", probability);
    const key = position === null || position >= NUM_KEYS ? "" : String(position + 1);
    return createButton(
      { click: () => choose(name), class: isFirst ? "class proposed" : "class" },
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
    if (classes.length <= NUM_KEYS) return classes;
    // The number keys select the most probable classes.
    const rank = (name) => {
      const position = proposals.findIndex((proposal) => proposal.label === name);
      return position < 0 ? Infinity : position;
    };
    const ranked = classes.map(({ name }, i) => ({ name, rank: rank(name), i }));
    return ranked.sort((a, b) => (a.rank === b.rank ? a.i - b.i : a.rank - b.rank));
  }

  function findClasses(typed) {
    const wanted = typed.toLowerCase();
    const matches = classes.filter(({ name }) => name.toLowerCase().includes(wanted));
    const startsSo = ({ name }) => name.toLowerCase().startsWith(wanted);
    const found = [...matches.filter(startsSo), ...matches.filter((match) => !startsSo(match))];
    const isKnown = classes.some(({ name }) => name.toLowerCase() === wanted);
    return isKnown ? found : [...found, { name: typed, isNew: true }];
  }

  return {
    element,
    update(newClasses, newProposals) {
      // A list that is replaced between the press and the release of a button loses the click.
      const text = JSON.stringify([newClasses, newProposals]);
      if (text === described) return;
      described = text;
      classes = newClasses;
      proposals = newProposals;
      search.placeholder = classes.length ? "Search or add a class" : "Type a class and press Enter";
      render();
    },
    /** Handles a key that was pressed outside of all fields; returns whether it did. */
    onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return false;
      const position = Number.parseInt(event.key, 10);
      if (event.key.length === 1 && position >= 1 && position <= shown.length) {
        choose(shown[position - 1].name);
      } else if (event.key === "Enter" && proposals.length) {
        choose(proposals[0].label);
      } else if (/^[\p{L}/]$/u.test(event.key)) {
        search.value = event.key === "/" ? "" : event.key;
        search.focus();
        render();
      } else return false;
      return true;
    },
    focus: () => search.focus(),
  };
}
