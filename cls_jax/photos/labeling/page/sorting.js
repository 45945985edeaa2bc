// All photos by class: which of them to look at, as copies in folders, and as a table.

import { create, createButton, formatCount, save } from "./dom.js";

const TARGETS = [90, 95, 98]; // Percent of the sorted photos that are right.
const FORMATS = {
  "label-studio": { title: "Label Studio", file: "label-studio.json" },
  coco: { title: "COCO", file: "labels.coco.json" },
  fiftyone: { title: "FiftyOne", file: "labels.json" },
  cvat: { title: "CVAT", file: "annotations.xml" },
};
const FIT_MS = 700; // Polling interval while a classifier is being fitted.

export function createSorting(app) {
  let timer = 0;
  let images = [];
  let isOwn = false; // Whether the limit was typed.

  const target = create(
    "select",
    { id: "target", change: () => update().catch(app.report) },
    ...TARGETS.map((percent) => create("option", { value: String(percent) }, `${percent}%`)),
  );
  target.value = "95";
  const sentence = create("p", { class: "to-check" });
  const look = createButton({ click: lookAt, class: "primary", id: "look", hidden: true });
  const limit = create("input", {
    type: "number",
    id: "unsure",
    class: "search minutes",
    min: "0",
    max: "100",
    step: "1",
    value: "0",
    input: () => {
      isOwn = true;
    },
  });
  const format = create(
    "select",
    { id: "format" },
    ...Object.entries(FORMATS).map(([name, { title }]) => create("option", { value: name }, title)),
  );
  const element = create(
    "section",
    { class: "go-on", "aria-label": "Sorted photos" },
    create("h3", {}, "Sorted photos"),
    create("div", { class: "actions" }, create("label", { for: "target" }, "Photos that must be right:"), target),
    sentence,
    create(
      "div",
      { class: "actions" },
      look,
      createButton({ click: () => app.showPhotos(null) }, "See all photos"),
    ),
    create(
      "div",
      { class: "actions" },
      create("label", { for: "unsure" }, "Unsure below, in percent:"),
      limit,
      createButton({ click: () => app.run(copy), id: "copies" }, "Copy into class folders"),
    ),
    create(
      "div",
      { class: "actions" },
      createButton({ click: () => app.run(() => download("csv")), class: "download" }, "Download the table (CSV)"),
      createButton({ click: () => app.run(() => download("xlsx")), class: "download", id: "xlsx" }, "For Excel (.xlsx)"),
    ),
    create(
      "p",
      { class: "hint" },
      "Photos without an answer whose class is less certain than this go into the folder unsure, and the table says so.",
    ),
    create(
      "div",
      { class: "actions" },
      create("label", { for: "format" }, "Your labels for another program:"),
      format,
      createButton({ click: () => app.run(downloadLabels), class: "download", id: "labels" }, "Download the labels"),
    ),
  );

  /** Says which photos to look at, and again once the classifier of the current labels is fitted. */
  async function update() {
    clearTimeout(timer);
    const percent = target.value;
    const found = await app.get(`to_check/${percent}`);
    if (!element.isConnected || percent !== target.value) return;
    images = found.images ?? [];
    const message = found.is_fitting ? "Learning from your labels…" : found.message;
    sentence.textContent = found.message ? message : describe(percent, found);
    look.hidden = !images.length;
    look.textContent = `Look at ${images.length === 1 ? "this" : "these"} ${images.length.toLocaleString("en")}`;
    if (!isOwn && !found.message) limit.value = String(found.unsure_below);
    if (found.is_fitting) timer = setTimeout(() => update().catch(app.report), FIT_MS);
  }

  function describe(percent, { sorted }) {
    const goal = `${percent}% of the ${formatCount(sorted, "sorted photo")}`;
    const named = `The others are as named by ${app.state.named_by}.`;
    if (!images.length) return `About ${goal} or more are right already. ${named}`;
    return `To get ${goal} right, look at ${images.length === 1 ? "this" : "these"} ${images.length.toLocaleString("en")}. ${named}`;
  }

  function lookAt() {
    app.showPhotos({
      title: "Photos to look at",
      hint: "The least certain first. Enter confirms what is suggested. Otherwise, press the key of a class.",
      sections: [{ title: "", images }],
    });
  }

  async function copy() {
    const { copies, unsure, folder } = await app.post("copies", { unsure_below: Number(limit.value) });
    const rest = unsure ? ` ${unsure.toLocaleString("en")} of them are in unsure.` : "";
    app.announce(`${formatCount(copies, "photo")} copied into ${folder}.${rest}`, true);
  }

  async function download(kind) {
    save(await app.getFile(`/api/proposals.${kind}?unsure_below=${Number(limit.value)}`), `sorted.${kind}`);
  }

  async function downloadLabels() {
    save(await app.getFile(`/api/labels/${format.value}`), FORMATS[format.value].file);
  }

  return { element, update, close: () => clearTimeout(timer) };
}
