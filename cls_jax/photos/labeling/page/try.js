// Classifies photos from elsewhere.

import { post, upload } from "./api.js";
import { build, create, createPhoto } from "./dom.js";
import { kind } from "./kinds.js";
import { formatCount, formatPercent } from "./words.js";

const MAX_BYTES = 2 ** 26;

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

  const { element, zone, input, count, cards } = build("try", {
    input: () => {
      add(input.files);
      input.value = "";
    },
  });
  zone.addEventListener("drop", (event) => add(event.dataTransfer.files));

  function add(files) {
    for (const file of files) {
      const { element: card, picture, title, answer } = build("tried");
      picture.src = URL.createObjectURL(file);
      card.ariaLabel = title.textContent = file.name;
      cards.append(card);
      queue.push({ file, answer, picture });
    }
    work();
  }

  async function work() {
    if (isWorking) return;
    isWorking = true;
    while (queue.length) {
      const { file, answer, picture } = queue.shift();
      try {
        if (file.size > MAX_BYTES) throw new Error("The file is larger than 64 MB.");
        const result = await upload("try", file);
        answer.replaceChildren(describe(result, file));
        if (!picture.naturalWidth) picture.src = createPreview(result.preview);
        app.announce(`${file.name}: ${kind.write(result.label)}, ${formatPercent(result.probability)}`, false);
      } catch (error) {
        answer.replaceChildren(create("p", { class: "wrong" }, error.message));
        app.announce(`${file.name}: ${error.message}`, false);
      }
      done += 1;
      count.textContent = `${formatCount(done, "photo")} classified${queue.length ? `, ${queue.length} waiting` : ""}.`;
    }
    isWorking = false;
  }

  function describe({ label, probability, is_far: isFar, nearest }, file) {
    const parts = build("verdict", { keep: () => addToFolder(file, parts.keep) });
    parts.label.textContent = kind.write(label);
    parts.share.textContent = ` ${formatPercent(probability)}`;
    const isUnknown = "This may be none of the classes: no photo in the folder is very similar. Most similar:";
    parts.hint.textContent = isFar ? isUnknown : "Most similar:";
    parts.nearest.append(
      ...nearest.map((item) =>
        create("li", {}, createPhoto(item, "small"), create("span", { class: "share" }, kind.write(item.label))),
      ),
    );
    parts.keep.ariaLabel = `Add ${file.name} to the folder and label it`;
    return parts.element;
  }

  /** Adds a photo to the folder and asks what it is. What is undone meanwhile waits. */
  function addToFolder(file, button) {
    button.disabled = true;
    app.run(async () => {
      try {
        const { name } = await upload(`add?name=${encodeURIComponent(file.name)}`, file);
        await app.scan(true);
        button.textContent = `Added as ${name}`;
        app.open(await post("find", { name }));
      } catch (error) {
        button.disabled = false;
        throw error;
      }
    }, true);
  }

  return { element, update: () => {}, onKey: () => false };
}

function createPreview(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" }));
}
