// Builds elements. Names of files and classes become text, never markup.

import { getPhoto } from "./api.js";

/** Creates an element with attributes. One that is true or false is there or not. */
export function create(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const EVENTS = { SELECT: "change", INPUT: "input" };

/**
 * Clones a template of index.html. Returns its parts by their names in `data-part`, and all of it as
 * `element`. `actions` are called when a part of that name is pressed, chosen or typed into.
 */
export function build(id, actions = {}) {
  // Not a clone, which is of another document: a photo that came there would be loaded again.
  const element = document.importNode(document.getElementById(id).content.firstElementChild, true);
  const parts = { element };
  for (const part of element.querySelectorAll("[data-part]")) parts[part.dataset.part] = part;
  for (const [name, action] of Object.entries(actions)) {
    parts[name].addEventListener(EVENTS[parts[name].tagName] ?? "click", action);
  }
  return parts;
}

/** Writes words into all templates, for "{noun}" and the like. */
export function fillTemplates(words) {
  for (const { content } of document.querySelectorAll("template")) {
    for (const { attributes, childNodes } of content.querySelectorAll("*")) {
      for (const node of [...attributes, ...childNodes]) {
        node.nodeValue = node.nodeValue?.replace(/{(\w+)}/g, (_, word) => words[word]) ?? null;
      }
    }
  }
}

/** A photo. Its promise `shown` resolves to whether it could be decoded, which is `isShown` from then on. */
export function createPhoto({ image, name }, size) {
  const picture = create("img", { alt: name, draggable: "false" });
  picture.isShown = null; // Not known yet.
  picture.shown = show(picture, image, size).then(
    () => (picture.isShown = true),
    () => (picture.isShown = false),
  );
  return picture;
}

async function show(picture, image, size) {
  picture.src = URL.createObjectURL(await getPhoto(image, size));
  try {
    await picture.decode();
  } finally {
    URL.revokeObjectURL(picture.src);
  }
}

/** Opens the report of a run in another tab, in a sandbox. */
export async function openReport(app, content) {
  window.open((await app.post("report", content)).report, "_blank", "noopener");
}

/** Downloads a Blob as a file. A link could not send the token. */
export function save(blob, name) {
  const href = URL.createObjectURL(blob);
  create("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
