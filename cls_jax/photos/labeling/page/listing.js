// Which photos the grid shows, in which order and under which titles.

import { kind } from "./kinds.js";
import { describeAnswer, formatPercent } from "./words.js";

/** Takes over the columns from the server: photos by image. Those known `before` stay the same objects. */
export function read(columns, before) {
  const photos = new Map();
  columns.image.forEach((image, i) => {
    const photo = before.get(image) ?? {};
    for (const key of ["image", "name", "decision", "confidence", "revision", "copies"]) {
      photo[key] = columns[key][i];
    }
    photo.label = columns.labels[columns.label[i]] ?? "";
    photos.set(image, photo);
  });
  return photos;
}

/** Whether a photo passes filters: { file, label, below, kind }, each "" for all. */
function matches({ name, decision, label, confidence, copies }, filters) {
  if (!name.toLowerCase().includes(filters.file.toLowerCase())) return false;
  if (filters.label && !kind.split(label).includes(filters.label)) return false;
  if (filters.below && (decision || confidence >= Number(filters.below))) return false;
  if (filters.kind === "open") return !decision;
  if (filters.kind === "answered") return decision;
  return filters.kind !== "copies" || copies >= 0;
}

/** The photos that pass the filters, in sections: by class, the least certain first, and answers last. */
export function arrange(photos, classNames, filters) {
  const found = [...photos].filter((photo) => matches(photo, filters));
  if (filters.kind === "copies") {
    found.sort((a, b) => a.copies - b.copies || a.image - b.image);
    return [{ title: formatTitle("Look-alikes", found), items: found }];
  }
  const isSure = ({ decision }) => decision !== "";
  found.sort((a, b) => isSure(a) - isSure(b) || a.confidence - b.confidence || a.image - b.image);
  // A class may have the name of another section.
  const titles = new Map(kind.list(classNames));
  const groups = new Map([...titles.keys()].map((key) => [key, []]));
  for (const photo of found) groups.get(kind.find(photo))?.push(photo);
  return [...groups].map(([key, items]) => ({ title: formatTitle(titles.get(key), items), items }));
}

export function formatTitle(name, items) {
  return `${name} · ${items.length.toLocaleString("en")}`;
}

export function describe({ name, decision, label, confidence }) {
  if (decision) {
    const given = describeAnswer({ decision, label });
    return { name: `${name}, ${given}, your answer`, caption: `✓ ${given}`, decision };
  }
  if (!label) return { name: `${name}, no ${kind.noun} yet`, caption: "", decision };
  const [text, percent] = [kind.write(label), formatPercent(confidence)];
  return { name: `${name}, ${text}, suggested, ${percent}`, caption: `${text} ${percent}`, decision };
}
