// Classifies photos from elsewhere.

import { post, upload } from "./api.js";
import { build, create, createPhoto } from "./dom.js";
import { interpret } from "./names.js";
import { formatCount, formatPercent } from "./words.js";

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

  const { element, zone, input, names, count, cards, learning } = build("try", {
    input: () => {
      add(input.files);
      input.value = "";
    },
  });
  zone.addEventListener("drop", (event) => add(event.dataTransfer.files));

  function add(files) {
    for (const file of files) {
      const { element: card, picture, title, answer } = build("tried");
      const href = URL.createObjectURL(file);
      picture.addEventListener("load", () => URL.revokeObjectURL(picture.src)); // Perhaps of the preview.
      picture.addEventListener("error", () => URL.revokeObjectURL(href));
      picture.src = href;
      card.setAttribute("aria-label", file.name);
      title.textContent = file.name;
      cards.append(card);
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
    const parts = build("verdict", { keep: () => addToFolder(file, parts), correction: explain });
    parts.label.textContent = label;
    parts.share.textContent = ` ${formatPercent(probability)}`;
    const isUnknown = "This may be none of the classes: no photo in the folder is very similar. Most similar:";
    parts.hint.textContent = isFar ? isUnknown : "Most similar:";
    parts.nearest.append(
      ...nearest.map((item) =>
        create("li", {}, createPhoto(item, "small"), create("span", { class: "share" }, item.label)),
      ),
    );
    parts.correction.setAttribute("aria-label", `Wrong? ${file.name} is`);
    parts.correction.addEventListener("keydown", ({ key, shiftKey }) => key === "Enter" && enter(shiftKey));
    parts.keep.setAttribute("aria-label", `Add ${file.name} to the folder`);

    const getMeaning = () => {
      const text = parts.correction.value.trim();
      return text ? interpret(text, app.state.classes.map(({ name }) => name)) : { kind: "" };
    };

    /** Says what Enter does. */
    function explain() {
      const { kind, name, begun } = getMeaning();
      const texts = {
        add: `This adds the new class “${name}”.`,
        mark: `Enter: ${name} · Shift Enter adds the new class.`,
        guess: `${begun?.length} classes start with this · Shift Enter adds a new class.`,
      };
      parts.said.textContent = texts[kind] ?? "";
    }

    /** Takes an exact or a new name. Half a name only becomes that of the class that begins so. */
    function enter(adds) {
      const { kind, name } = getMeaning();
      if (adds || ["", "add", "take"].includes(kind)) return parts.keep.click();
      if (kind === "mark") parts.correction.value = name;
      explain();
    }

    return [parts.element];
  }

  /** Adds a photo to the folder, with its class if one was typed. What is undone meanwhile waits. */
  function addToFolder(file, { keep: button, correction }) {
    const text = correction.value.trim(); // As it is at the click.
    button.disabled = correction.disabled = true;
    button.textContent = "Adding…";
    app.run(async () => {
      try {
        const { name } = await upload(`add?name=${encodeURIComponent(file.name)}`, file);
        await app.scan(true);
        await correct(name, text);
        button.textContent = `Added as ${name}${text ? "" : ", without a label"}`;
      } catch (error) {
        button.disabled = correction.disabled = false;
        button.textContent = ADD;
        throw error;
      }
    }, true);
  }

  async function correct(name, text) {
    if (!text) return;
    const { image, revision } = await post("find", { name });
    const { kind, name: known } = interpret(text, app.state.classes.map((one) => one.name));
    const label = kind === "take" ? known : text;
    await app.post("decide", { changes: [[image, revision, "label", label]], adds: kind !== "take" });
    app.announce(`${name}: ${label}.`, true);
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
