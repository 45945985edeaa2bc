// What a label can be: one class, or any number of tags. As a text, it is the name of the class, or the
// tags joined by ";". ";" alone is none of them, and "?" begins a tag that nobody has looked for.

const OPEN = "?";
const SEPARATOR = ";";
const SKIPPED = ["skip", "Skipped"];

const CLASSES = {
  noun: "class",
  downloads: "Sorted photos",
  nouns: "classes",
  heading: "Classes",
  column: "Class",
  question: "What is it?",
  use: "Copy into class folders",
  useAs: "copies",
  hint: "The least certain first. Select photos and give them their class.",
  confirm: "Click the wrong photos, then confirm the rest of the row.",
  /** The classes of a label. */
  split: (label) => [label].filter(Boolean),
  /** A label as people read it. */
  write: (label) => label,
  /** What Enter takes. */
  propose: ([first]) => first?.label,
  /** What became of photos of a class that was deleted. */
  free: (photos) => ` Now unlabeled: ${photos}.`,
  /** The answer about one photo, until it is saved by `decide`. */
  createAnswer: ({ decide }) => ({
    /** Takes a class. Returns whether it does. */
    choose: (name, isNew) => decide("label", name, isNew),
    /** Saves what is chosen. Returns whether the key is for that. */
    confirm: () => false,
    /** Goes on with a photo. Returns the name of another one for which something was chosen and not saved. */
    follow: () => "",
    /** Forgets what is chosen. Returns the name of its photo. */
    forget: () => "",
    /** Classes with what their buttons show. */
    describe: (classes) => classes,
  }),
  /** What a class is for photos: their new labels, in words, and whether they wait for more. */
  give: (photos, name) => ({ labels: photos.map(() => name), text: name || "none of these", waits: false }),
  /** Classes with what their buttons show for photos. */
  mark: (classes) => classes,
  /** The titles of sections, and the section of a photo. */
  list: (names) => [...names.map((name) => [`class ${name}`, name]), ["", "No class yet"], ["none", "None of these"], SKIPPED],
  find: ({ decision, label }) => (["none", "skip"].includes(decision) ? decision : label && `class ${label}`),
};

const TAGS = {
  noun: "tag",
  downloads: "Tables",
  nouns: "tags",
  heading: "Tags",
  column: "Tag",
  question: "Which tags does it have?",
  use: "Download the table (CSV)",
  useAs: "csv",
  hint: "The least certain first. Select photos: a key gives them its tag, or takes it away if all have it.",
  confirm: "Each row has exactly these tags and no others. Click the wrong photos, then confirm the rest of the row.",
  split: (label) => label.split(SEPARATOR).filter((tag) => tag && !tag.startsWith(OPEN)),
  write(label) {
    const isWhole = !label.includes(OPEN);
    const found = TAGS.split(label).join(", ") || (label && isWhole && "none of these");
    return [found, !isWhole && "others open"].filter(Boolean).join(", ");
  },
  propose: () => null,
  free: (photos) => ` ${photos} had it.`,
  createAnswer: createTags,
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

// What a person has set or taken away of one photo and not confirmed. It stays while other views are shown.
let touched = new Map();
let touchedPhoto = null;

/** As that of CLASSES: the tags of one photo, those of its answer or the suggested ones, until they are confirmed. */
function createTags({ app, decide, refuses, render }) {
  let photo = null;
  const isOpen = (name) => !photo.decision || photo.label.split(SEPARATOR).includes(OPEN + name);
  const isSuggested = (name) =>
    isOpen(name) && photo.proposals.some(({ label, probability }) => label === name && probability >= 0.5);
  const isOn = (name) => touched.get(name) ?? (TAGS.split(photo.label).includes(name) || isSuggested(name));

  /** Also those that were typed for this photo. */
  function describe(classes) {
    const added = [...touched.keys()].filter((name) => !classes.some((known) => known.name === name));
    return [...classes, ...added.map((name) => ({ name, key: "" }))].map((one) => ({
      ...one,
      pressed: isOn(one.name),
      isGuess: !touched.has(one.name) && isSuggested(one.name),
    }));
  }

  function forget() {
    const lost = touched.size ? touchedPhoto.name : "";
    touched = new Map();
    return lost;
  }

  return {
    choose(name) {
      if (refuses()) return false;
      touched.set(name, !isOn(name));
      touchedPhoto = photo;
      app.announce(`${name}: ${isOn(name) ? "set" : "not set"}.`, false);
      render();
      return true;
    },
    confirm() {
      if (!photo) return true;
      const names = describe(app.state.classes).filter(({ pressed }) => pressed).map(({ name }) => name);
      if (names.length) decide("label", join(names), true);
      else app.announce("No tag is set: press 0 if the photo has none of them.");
      return true;
    },
    follow(next) {
      photo = next;
      const isSame = touchedPhoto?.image === next.image && touchedPhoto?.revision === next.revision;
      return isSame ? "" : forget();
    },
    forget,
    describe,
  };
}
