// The classes: their names, descriptions and examples.

import { build, create, createPhoto } from "./dom.js";
import { kind } from "./kinds.js";
import { formatCount } from "./words.js";

const DIGITS = [..."123456789"];
const LETTERS = [..."abcdefghijklmnopqrstuvwxyz"]; // To choose with more classes than digits.

let draft = ""; // The name of a new class that was typed and not added.

export function mount(root, app) {
  const { element, hint, name, rows } = build("classes", { add });
  name.value = draft;
  name.addEventListener("keydown", ({ key }) => key === "Enter" && add());
  rows.addEventListener("focusout", () => setTimeout(() => update(app.state)));
  root.append(element);
  let removed = []; // The rows of classes that were deleted or merged here: { name, row, place }.
  let version = -1;

  function add() {
    const text = name.value.trim();
    if (!text) return name.focus();
    app.run(async () => {
      const count = app.state.classes.length;
      const { label, classes } = await app.post("classes", { name: text });
      name.value = "";
      const isNew = classes.length > count;
      app.announce(isNew ? `${label} added: it is kept once a photo has it.` : `There is already a ${kind.noun} named ${label}.`);
      name.focus();
    });
  }

  function update(state) {
    const isTyping = rows.contains(document.activeElement) && document.activeElement.matches("input");
    if (state.version === version || isTyping) return;
    version = state.version;
    hint.textContent = state.classes.length
      ? `Give a ${kind.noun} another one's name to merge them. To choose an example, open a labeled photo from the strip.`
      : `No ${kind.nouns} yet. Add one here, or type its name beside a photo.`;
    const { id } = document.activeElement;
    const all = state.classes.map(createRow);
    // They keep their places, so that a second click is not for the class below.
    removed = removed.filter((one) => !state.classes.some((known) => known.name === one.name));
    for (const { row, place } of removed) all.splice(place, 0, row);
    rows.replaceChildren(...all);
    document.getElementById(id)?.focus();
  }

  function createRow({ name, count, description, example, key }, i, { length }) {
    const setKey = () =>
      app.run(async () => {
        try {
          await app.post("key", { name, text: keys.value });
        } catch (error) {
          keys.value = key;
          throw error;
        }
      }, true);
    const rename = (text) =>
      app.run(async () => {
        const before = app.state.classes.length;
        const { classes } = await app.post("rename", { name, text });
        nameField.blur(); // Not before: Enter tries again what was not saved.
        const isMerger = classes.length < before;
        const said = describe(name, text, { count, isMerger });
        if (isMerger) keepPlace(name, said);
        app.announce(`${said} Undo brings ${name} back.`);
      });
    let isDone = false; // Whether the name was entered, or its class deleted.
    const parts = build("class", { keys: setKey, remove: deleteClass });
    const { element, nameField, note, keys, remove } = parts;
    element.ariaLabel = name;
    const titles = { nameField: "Name of", note: "Description of", keys: "Key of", remove: "Delete" };
    for (const [part, title] of Object.entries(titles)) parts[part].ariaLabel = `${title} ${name}`;
    parts.count.textContent = formatCount(count, "photo");
    if (example !== null) parts.example.append(createPhoto({ image: example, name: `Example of ${name}` }, "small"));
    keys.id = `key-${i}`;
    const letters = length > DIGITS.length ? LETTERS : [];
    const options = [...(key ? [] : [""]), ...DIGITS, ...letters];
    keys.append(...options.map((one) => create("option", { value: one, selected: one === key }, one ? `Key ${one}` : "No key")));

    // Half a name could be another class's, and merge the two: only Enter takes it.
    nameField.defaultValue = name;
    nameField.addEventListener("input", () => (isDone = false));
    nameField.addEventListener("keydown", ({ key: pressed }) => {
      const text = nameField.value.trim();
      if (pressed === "Escape" || (pressed === "Enter" && (!text || text === name))) {
        nameField.value = name;
        nameField.blur();
        if (!text) app.announce(`A ${kind.noun} needs a name: it is still ${name}.`);
      } else if (pressed === "Enter") {
        isDone = true;
        rename(text);
      }
    });
    nameField.addEventListener("blur", () => {
      if (!isDone && nameField.value !== name) app.announce(`Press Enter in the name field to rename ${name}.`);
    });
    note.defaultValue = description;
    note.addEventListener("keydown", ({ key: pressed }) => {
      if (pressed === "Escape") note.value = description;
      if (["Enter", "Escape"].includes(pressed)) note.blur();
    });
    // Not only when it has changed: it may not have been saved before.
    note.addEventListener("blur", () => {
      const text = note.value.trim();
      if (!isDone && text !== description) app.run(() => app.post("describe", { name, text }));
    });
    // A field that was changed would be saved first, and the button replaced before its release.
    remove.addEventListener("mousedown", (event) => event.preventDefault());

    function deleteClass() {
      if (app.refuses()) return;
      isDone = true;
      document.activeElement.blur();
      rename("");
    }

    return element;
  }

  /** Says what became of a class in its place, in a row as high as its own was. */
  function keepPlace(name, said) {
    const place = [...rows.children].findIndex((row) => row.ariaLabel === name);
    const row = create("p", { class: "hint" }, said);
    row.style.minHeight = `${rows.children[place].offsetHeight}px`;
    removed.push({ name, row, place });
    removed.sort((a, b) => a.place - b.place);
  }

  /** A character begins the name of a new class: the browser writes it into the field. */
  function onKey({ key }) {
    if (key.length === 1 && key !== " ") name.focus();
    return false;
  }

  return { update, onKey, unmount: () => (draft = name.value) };
}

function describe(name, text, { count, isMerger }) {
  const photos = count ? formatCount(count, "photo") : "no photo";
  if (!text) return `${name} deleted.${count ? kind.free(photos) : ""}`;
  return isMerger ? `${name} merged into ${text}: ${photos} moved.` : `${name} is now ${text} (${photos}).`;
}
