// Classifies photos from elsewhere.

import { post, upload } from "./api.js";
import { create, createButton, createPhoto, formatCount, formatPercent } from "./dom.js";
import { findClass } from "./names.js";

const MAX_BYTES = 2 ** 26;
const ADD = "Add to the folder";
const FIT_MS = 700; // Polling interval while a classifier is being fitted.

let view = null; // Its photos stay, and those that wait are classified, while another view is shown.

export function mount(root, app) {
  view ??= createView(app);
  root.append(view.element);
  return view;
}

function createView(app) {
  const queue = [];
  let isWorking = false;
  let done = 0;
  let version = -1;
  let timer = 0;

  const input = create("input", {
    type: "file",
    id: "files",
    multiple: true,
    accept: "image/*",
    change: () => {
      add(input.files);
      input.value = "";
    },
  });
  const zone = create(
    "div",
    { class: "drop", drop: (event) => add(event.dataTransfer.files) },
    create("label", { for: "files" }, "Drop photos here or choose files. They are not stored."),
    input,
  );
  const names = create("datalist", { id: "class-names" });
  const count = create("p", { class: "hint" });
  const cards = create("div", { class: "cards" });
  const learning = create(
    "div",
    { hidden: true },
    create("p", { class: "hint" }, "Learning from your labels…"),
    create("progress", { "aria-label": "Learning from your labels" }),
  );
  const element = create(
    "div",
    { class: "page" },
    create("h2", {}, "Try it"),
    zone,
    learning,
    names,
    count,
    cards,
  );

  function add(files) {
    for (const file of files) {
      const answer = create("div", { class: "answer" }, create("p", { class: "hint" }, "Waiting…"));
      const href = URL.createObjectURL(file);
      const picture = create("img", {
        alt: "",
        src: href,
        load: () => URL.revokeObjectURL(picture.src), // Perhaps of the preview.
        error: () => URL.revokeObjectURL(href),
      });
      const title = create("h3", {}, file.name);
      cards.append(create("article", { class: "card", "aria-label": file.name }, picture, title, answer));
      queue.push({ file, answer, picture });
    }
    work();
  }

  /** Classifies the queued files one at a time. */
  async function work() {
    if (isWorking) return;
    isWorking = true;
    while (queue.length) {
      const { file, answer, picture } = queue.shift();
      try {
        if (file.size > MAX_BYTES) throw new Error("The file is larger than 64 MB.");
        const result = await upload("try", file);
        answer.replaceChildren(...describe(result, file));
        if (!picture.naturalWidth) picture.src = createPreview(result.preview);
        app.announce(`${file.name}: ${result.label}, ${formatPercent(result.probability)}`);
      } catch (error) {
        answer.replaceChildren(create("p", { class: "wrong" }, error.message));
        app.announce(`${file.name}: ${error.message}`);
      }
      done += 1;
      count.textContent = `${formatCount(done, "photo")} classified${queue.length ? `, ${queue.length} waiting` : ""}.`;
    }
    isWorking = false;
  }

  function describe({ label, probability, is_far: isFar, nearest }, file) {
    const correction = create("input", {
      class: "search",
      list: names.id,
      "data-class-field": true,
      "aria-label": `Wrong? ${file.name} is`,
      placeholder: "Wrong? It is …",
      maxlength: "255",
      autocomplete: "off",
      keydown: ({ key }) => key === "Enter" && keep.click(),
      input: () => {
        const text = correction.value.trim();
        hint.textContent = text && !findClass(app.state.classes, text) ? `This adds the new class “${text}”.` : "";
      },
    });
    const hint = create("p", { class: "hint", role: "status" });
    const keep = createButton(
      { click: () => addToFolder(file, keep, correction) },
      ADD,
    );
    keep.setAttribute("aria-label", `Add ${file.name} to the folder`);
    const isUnknown = "This may be none of the classes: no photo in the folder is very similar. Most similar:";
    return [
      create("p", {}, create("b", { class: "verdict" }, label), ` ${formatPercent(probability)}`),
      create("p", { class: "hint" }, isFar ? isUnknown : "Most similar:"),
      create(
        "ul",
        { class: "nearest" },
        ...nearest.map((item) =>
          create("li", {}, createPhoto(item, "small"), create("span", { class: "share" }, item.label)),
        ),
      ),
      create("div", { class: "actions" }, correction, keep),
      hint,
    ];
  }

  /** Adds a photo to the folder, with its class if one was typed. */
  async function addToFolder(file, button, correction) {
    const text = correction.value.trim(); // As it is at the click.
    button.disabled = correction.disabled = true;
    button.textContent = "Adding…";
    try {
      const { name } = await upload("add", file);
      await app.scan(true);
      await correct(name, text);
      button.textContent = `Added as ${name}${text ? "" : ", without a label"}`;
    } catch (error) {
      button.disabled = correction.disabled = false;
      button.textContent = ADD;
      app.report(error);
    }
  }

  async function correct(name, text) {
    if (!text) return;
    const { image, revision } = await post("find", { name });
    const known = findClass(app.state.classes, text);
    const label = known?.name ?? text;
    await app.post("decide", { changes: [{ image, decision: "label", label, revision }], adds: !known });
    app.announce(`${name}: ${label}.`, true);
    app.render();
  }

  async function update(state) {
    names.replaceChildren(...state.classes.map(({ name }) => create("option", { value: name })));
    for (const field of cards.querySelectorAll("input")) field.dispatchEvent(new Event("input")); // For their hints.
    if (state.version === version) return;
    version = state.version;
    await followFit();
  }

  /** Says that it is learning until the classifier of the current labels is fitted. */
  async function followFit() {
    clearTimeout(timer);
    const { is_fitting: isFitting, labels } = await app.get("classifier");
    learning.hidden = !isFitting || Boolean(labels);
    if (isFitting && element.isConnected) timer = setTimeout(() => followFit().catch(app.report), FIT_MS);
  }

  return { element, update, unmount: () => clearTimeout(timer), onKey: () => false };
}

/** The address of a picture that the server has decoded. */
function createPreview(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" }));
}
