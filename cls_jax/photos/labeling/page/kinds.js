// What a label can be: one class, or any number of tags. As a text, it is the name of the class, or the
// tags joined by ";". ";" alone is none of them, and "?" begins a tag that nobody has looked for.

const OPEN = "?";
const SEPARATOR = ";";
const SKIPPED = ["skip", "Skipped"];

const CLASSES = {
  several: false,
  noun: "class",
  downloads: "Sorted photos",
  nouns: "classes",
  heading: "Classes",
  column: "Class",
  question: "What is it?",
  use: "Copy into class folders",
  hint: "The least certain first. Select photos and give them their class.",
  confirm: "Click the wrong photos, then confirm the rest of the row.",
  /** The classes of a label. */
  split: (label) => [label].filter(Boolean),
  /** A label as people read it. */
  write: (label) => label,
  /** What Enter takes. */
  propose: ([first]) => first?.label,
  /** What a class is for photos: their new labels, in words, and whether they wait for more. */
  give: (photos, name) => ({ labels: photos.map(() => name), text: name || "none of these", waits: false }),
  /** Classes with what their buttons show for photos. */
  mark: (classes) => classes,
  /** The titles of sections, and the section of a photo. */
  list: (names) => [...names.map((name) => [`class ${name}`, name]), ["", "No class yet"], ["none", "None of these"], SKIPPED],
  find: ({ decision, label }) => (["none", "skip"].includes(decision) ? decision : label && `class ${label}`),
};

const TAGS = {
  several: true,
  noun: "tag",
  downloads: "Tables",
  nouns: "tags",
  heading: "Tags",
  column: "Tag",
  question: "Which tags does it have?",
  use: "Download the table (CSV)",
  hint: "The least certain first. Select photos: a key gives them its tag, or takes it away if all have it.",
  confirm: "Each row has exactly these tags and no others. Click the wrong photos, then confirm the rest of the row.",
  split: (label) => label.split(SEPARATOR).filter((tag) => tag && !tag.startsWith(OPEN)),
  write(label) {
    const isWhole = !label.includes(OPEN);
    const found = TAGS.split(label).join(", ") || (label && isWhole && "none of these");
    return [found, !isWhole && "others open"].filter(Boolean).join(", ");
  },
  propose: () => null,
  give(photos, name, all) {
    if (!name) return CLASSES.give(photos, name);
    const isOn = !photos.every((photo) => hasTag(photo, name));
    const labels = photos.map(({ decision, label }) => put(decision && label, name, isOn, all));
    return { labels, text: isOn ? name : `not ${name}`, waits: true };
  },
  mark: (classes, photos) =>
    classes.map((one) => {
      const count = photos.filter((photo) => hasTag(photo, one.name)).length;
      return { ...one, pressed: count > 0 && (count === photos.length || "mixed") };
    }),
  list: () => [["", "Without an answer"], ["label", "With an answer"], SKIPPED],
  find: ({ decision }) => decision,
};

/** That of this session. */
export let kind = CLASSES;

export function choose(hasTags) {
  kind = hasTags ? TAGS : CLASSES;
}

/** The label of a photo with some tags. */
export function join(tags) {
  return [...new Set(tags)].sort().join(SEPARATOR) || SEPARATOR;
}

/** A label with a tag or without it. If there is none, what nobody has said of `all` others stays open. */
export function put(label, tag, isOn, all) {
  const before = label ? label.split(SEPARATOR) : all.map((other) => OPEN + other);
  const others = before.filter((one) => one && one !== tag && one !== OPEN + tag);
  return join(isOn ? [...others, tag] : others);
}

function hasTag({ decision, label }, tag) {
  return decision && TAGS.split(label).includes(tag);
}

/**
 * The tags of one photo, before they are confirmed: those of its answer, or the suggested ones. What a
 * person has set or taken away is in `touched`.
 */
export function createTags() {
  let shown = "";
  let photo = null;
  let touched = new Map();
  const isOpen = (name) => !photo.decision || photo.label.split(SEPARATOR).includes(OPEN + name);
  const isSuggested = (name) =>
    isOpen(name) && photo.proposals.some(({ label, probability }) => label === name && probability >= 0.5);
  const isOn = (name) => touched.get(name) ?? (TAGS.split(photo.label).includes(name) || isSuggested(name));
  return {
    /** Goes on with another photo, or with what is suggested for the same one. */
    follow(next) {
      photo = next;
      const key = `${next?.image} ${next?.revision}`;
      if (key !== shown) touched = new Map();
      shown = key;
    },
    /** Returns whether it is set then. */
    toggle(name) {
      touched.set(name, !isOn(name));
      return isOn(name);
    },
    /** Classes with what their buttons show, also those that were typed for this photo. */
    describe(classes) {
      const added = [...touched.keys()].filter((name) => !classes.some((known) => known.name === name));
      return [...classes, ...added.map((name) => ({ name, key: "" }))].map((one) => ({
        ...one,
        pressed: isOn(one.name),
        isGuess: !touched.has(one.name) && isSuggested(one.name),
      }));
    },
    isTouched: () => touched.size > 0,
  };
}
