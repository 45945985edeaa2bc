// Builds elements. Names of files and classes become text, never markup.

import { getPhoto } from "./api.js";

/**
 * Creates an element.
 * Properties that are functions become listeners, as in { click: confirm }; others become attributes.
 */
export function create(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function createButton(properties, ...children) {
  return create("button", { type: "button", ...properties }, ...children);
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

export function formatPercent(share) {
  return `${Math.round(100 * share)}%`;
}

export function formatCount(count, noun, plural = `${noun}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;
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
