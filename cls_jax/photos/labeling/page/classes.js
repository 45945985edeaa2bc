// The classes: their names, descriptions and examples.

import { create, createButton, createPhoto, formatCount } from "./dom.js";

const KEYS = [..."123456789"];

// What was typed and not entered, for the next time that the view is shown: the name of a new class,
// and new names by the present ones.
let newName = "";
const drafts = new Map();

export function mount(root, app) {
  const rows = create("div", { class: "rows", focusout: () => setTimeout(() => update(app.state)) });
  const hint = create("p", { class: "hint" });
  const name = create("input", {
    class: "search",
    id: "new-class",
    value: newName,
    "data-class-field": true,
    "aria-label": "Name of a new class",
    placeholder: "New class",
    maxlength: "255",
    autocomplete: "off",
    input: ({ target }) => (newName = target.value),
    keydown: ({ key }) => key === "Enter" && add(),
  });
  let removed = []; // The rows of classes that were deleted or merged here: { name, row, place }.
  const adding = create("div", { class: "actions add" }, name, createButton({ click: add }, "Add"));
  // Above the classes, which must not come under a hand that adds one.
  root.append(create("div", { class: "page" }, create("h2", {}, "Classes"), hint, adding, rows));
  let version = -1;

  function add() {
    const text = name.value.trim();
    if (!text) return name.focus();
    app.run(async () => {
      const count = app.state.classes.length;
      const { label, classes } = await app.post("classes", { name: text });
      name.value = newName = "";
      const isNew = classes.length > count;
      app.announce(isNew ? `${label} added: it is kept once a photo has it.` : `There is a class ${label} already.`, true);
      name.focus();
    });
  }

  function update(state) {
    const isTyping = rows.contains(document.activeElement) && document.activeElement.matches("input");
    if (state.version === version || isTyping) return;
    version = state.version;
    hint.textContent = state.classes.length
      ? "Give a class another one's name to merge them. To choose an example, open a labeled photo from the strip."
      : "No classes yet. Add one here, or type its name beside a photo.";
    const { id } = document.activeElement;
    const all = state.classes.map(createRow);
    // They keep their places, so that a second click is not for the class below.
    removed = removed.filter((one) => !state.classes.some((known) => known.name === one.name));
    for (const { row, place } of removed) all.splice(place, 0, row);
    rows.replaceChildren(...all);
    if (id.startsWith("key-")) document.getElementById(id)?.focus();
  }

  function createRow({ name, count, description, example, key }, i) {
    const setKey = (field) =>
      app.run(async () => {
        try {
          await app.post("key", { name, text: field.value });
        } catch (error) {
          field.value = key;
          throw error;
        }
      }, true);
    const rename = (text) =>
      app.run(async () => {
        const before = app.state.classes.length;
        const { renamed, classes } = await app.post("rename", { name, text });
        nameField.blur(); // Not before: Enter tries again what was not saved.
        const isMerger = classes.length < before;
        const said = describe(name, text, { count: renamed, isMerger });
        drafts.delete(name);
        if (isMerger) removed.push({ name, row: createGone(element, said), place: findPlace(element) });
        removed.sort((a, b) => a.place - b.place);
        app.announce(`${said} Press Ctrl Z to ${text ? "undo" : `bring ${name} back`}.`, true);
      });
    const createField = (title, properties) =>
      create("input", {
        class: "search",
        "aria-label": `${title} of ${name}`,
        placeholder: title,
        autocomplete: "off",
        ...properties,
      });
    let isDone = false; // Whether the name was entered, or its class deleted.
    // Half a name could be another class's, and merge the two: only Enter takes it.
    const nameField = createField("Name", {
      value: drafts.get(name) ?? name,
      maxlength: "255",
      input: ({ target }) => {
        isDone = false;
        drafts.set(name, target.value);
      },
      keydown: ({ key, target }) => {
        const text = target.value.trim();
        if (key === "Escape" || (key === "Enter" && (!text || text === name))) {
          drafts.delete(name);
          target.value = name;
          target.blur();
          if (!text) app.announce(`A class needs a name: it is still ${name}.`, true);
        } else if (key === "Enter") {
          isDone = true;
          rename(text);
        }
      },
      blur: ({ target }) => {
        if (!isDone && target.value !== name) app.announce(`Press Enter in the name field to rename ${name}.`, true);
      },
    });
    const noteField = createField("Description", {
      value: description,
      maxlength: "500",
      keydown: ({ key, target }) => {
        if (key === "Escape") target.value = description;
        if (["Enter", "Escape"].includes(key)) target.blur();
      },
      // Not only when it has changed: it may not have been saved before.
      blur: ({ target }) => {
        const text = target.value.trim();
        if (!isDone && text !== description) app.run(() => app.post("describe", { name, text }));
      },
    });
    const keys = create(
      "select",
      {
        id: `key-${i}`,
        "aria-label": `Key of ${name}`,
        change: ({ target }) => setKey(target),
      },
      ...(key ? KEYS : ["", ...KEYS]).map((one) =>
        create("option", { value: one, selected: one === key }, one ? `Key ${one}` : "No key"),
      ),
    );
    const remove = createButton(
      {
        // A field that was changed would be saved first, and the button replaced before its release.
        mousedown: (event) => event.preventDefault(),
        click: () => {
          if (app.refuses()) return;
          isDone = true;
          document.activeElement.blur();
          rename("");
        },
        "aria-label": `Delete ${name}`,
      },
      "Delete",
    );
    const picture = example === null ? "" : createPhoto({ image: example, name: `Example of ${name}` }, "small");
    const element = create(
      "section",
      { class: "class-row", "aria-label": name },
      create("div", { class: "example" }, picture),
      keys,
      nameField,
      noteField,
      create("span", { class: "share" }, formatCount(count, "photo")),
      remove,
    );
    return element;
  }

  /** The place of a class among the rows, by its name: they may have been replaced since. */
  function findPlace({ ariaLabel }) {
    return [...rows.children].findIndex((row) => row.ariaLabel === ariaLabel);
  }

  /** A character begins the name of a new class: the browser writes it into the field. */
  function onKey({ key, ctrlKey, metaKey, altKey }) {
    const isText = key.length === 1 && key !== " " && !ctrlKey && !metaKey && !altKey;
    if (isText) name.focus();
    return false;
  }

  return { update, onKey };
}

/** A row as high as that of the class was, which says what became of it. */
function createGone({ offsetHeight }, said) {
  const row = create("p", { class: "hint" }, said);
  row.style.minHeight = `${offsetHeight}px`;
  return row;
}

/** What became of a class, whose new name is `text`, and of its photos. */
function describe(name, text, { count, isMerger }) {
  const photos = count ? formatCount(count, "photo") : "no photo";
  text = text.replace(/^[\p{Cf}\s]+|[\p{Cf}\s]+$/gu, ""); // As it is stored.
  if (!text) return `${name} deleted.${count ? ` Now unlabeled: ${photos}.` : ""}`;
  return isMerger ? `${name} merged into ${text}: ${photos} moved.` : `${name} is now ${text} (${photos}).`;
}
