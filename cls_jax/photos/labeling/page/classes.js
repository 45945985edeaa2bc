// The classes: their names, descriptions and examples.

import { create, createButton, createPhoto, formatCount } from "./dom.js";

const KEYS = [..."123456789"];

export function mount(root, app) {
  const rows = create("div", { class: "rows", focusout: () => setTimeout(() => update(app.state)) });
  const hint = create("p", { class: "hint" });
  const name = create("input", {
    class: "search",
    id: "new-class",
    "data-class-field": true,
    "aria-label": "Name of a new class",
    placeholder: "New class",
    maxlength: "255",
    autocomplete: "off",
    keydown: ({ key }) => key === "Enter" && add(),
  });
  const adding = create("div", { class: "actions add" }, name, createButton({ click: add }, "Add"));
  root.append(create("div", { class: "page" }, create("h2", {}, "Classes"), hint, rows, adding));
  let version = -1;

  function add() {
    const text = name.value.trim();
    if (!text) return name.focus();
    app.run(async () => {
      const count = app.state.classes.length;
      const { label, classes } = await app.post("classes", { name: text });
      name.value = "";
      app.announce(classes.length > count ? `${label} added.` : `There is a class ${label} already.`, true);
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
    rows.replaceChildren(...state.classes.map(createRow));
    if (id.startsWith("key-")) document.getElementById(id)?.focus();
  }

  function createRow({ name, count, description, example, key }, i) {
    const change = (verb, content) =>
      app.run(async () => {
        const before = app.state.classes.length;
        const { renamed, classes } = await app.post(verb, content);
        if (verb !== "rename") return;
        const said = describe(name, content.text, { count: renamed, isMerger: classes.length < before });
        app.announce(`${said} Press Ctrl Z to ${content.text ? "undo" : `bring ${name} back`}.`, true);
      });
    const field = (verb, value, title, limit) =>
      create("input", {
        value,
        class: "search",
        "aria-label": `${title} of ${name}`,
        placeholder: title,
        maxlength: limit,
        autocomplete: "off",
        keydown: ({ key, target }) => {
          if (key === "Escape") target.value = value;
          if (["Enter", "Escape"].includes(key)) target.blur();
        },
        change: ({ target }) => {
          const text = target.value.trim();
          if (isRemoved || target.value === value) return;
          if (text || verb === "describe") change(verb, { name, text });
          else target.value = value;
        },
      });
    const keys = create(
      "select",
      {
        id: `key-${i}`,
        "aria-label": `Key of ${name}`,
        change: ({ target }) => change("key", { name, text: target.value }),
      },
      ...(key ? KEYS : ["", ...KEYS]).map((one) =>
        create("option", { value: one, selected: one === key }, one ? `Key ${one}` : "No key"),
      ),
    );
    let isRemoved = false;
    const remove = createButton(
      {
        // A field that was changed would be saved first, and the button replaced before its release.
        mousedown: (event) => event.preventDefault(),
        click: () => {
          if (app.refuses()) return;
          isRemoved = true;
          document.activeElement.blur();
          change("rename", { name, text: "" });
        },
        "aria-label": `Delete ${name}`,
      },
      "Delete",
    );
    const picture = example === null ? "" : createPhoto({ image: example, name: `Example of ${name}` }, "small");
    return create(
      "section",
      { class: "class-row", "aria-label": name },
      create("div", { class: "example" }, picture),
      keys,
      field("rename", name, "Name", "255"),
      field("describe", description, "Description", "500"),
      create("span", { class: "share" }, formatCount(count, "photo")),
      remove,
    );
  }

  return { update, onKey: () => false };
}

/** What became of a class, whose new name is `text`, and of its photos. */
function describe(name, text, { count, isMerger }) {
  const photos = count ? formatCount(count, "photo") : "no photo";
  text = text.replace(/^[\p{Cf}\s]+|[\p{Cf}\s]+$/gu, ""); // As it is stored.
  if (!text) return `${name} deleted.${count ? ` Now unlabeled: ${photos}.` : ""}`;
  return isMerger ? `${name} merged into ${text}: ${photos} moved.` : `${name} is now ${text} (${photos}).`;
}
