// Labels as texts: the name of a class, or where photos may have several the tags, joined by ";".

const OPEN = "?"; // Begins a tag that nobody has looked for.
const SEPARATOR = ";";

/** Whether photos have tags, and not one class each. */
export let hasTags = false;

export function useTags(value) {
  hasTags = value;
}

/** What a class is called. */
export const noun = () => (hasTags ? "tag" : "class");
export const nouns = () => (hasTags ? "tags" : "classes");
export const heading = () => (hasTags ? "Tags" : "Classes");

/** The classes of a label. */
export function split(label) {
  if (!hasTags) return label ? [label] : [];
  return label.split(SEPARATOR).filter((tag) => tag && !tag.startsWith(OPEN));
}

/** The label of a photo with some tags. */
export function join(tags) {
  return [...new Set(tags)].sort().join(SEPARATOR) || SEPARATOR;
}

/** A label as people read it. */
export function write(label) {
  if (!hasTags || !label) return label;
  const isWhole = !label.includes(OPEN);
  return [split(label).join(", ") || (isWhole && "none of these"), !isWhole && "others open"].filter(Boolean).join(", ");
}

/** A label with a tag or without it. If there is none, what nobody has said of `all` others stays open. */
export function put(label, tag, isOn, all) {
  const before = label ? label.split(SEPARATOR) : all.map((other) => OPEN + other);
  const others = before.filter((one) => one && one !== tag && one !== OPEN + tag);
  return join(isOn ? [...others, tag] : others);
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
  const isOn = (name) => touched.get(name) ?? (split(photo.label).includes(name) || isSuggested(name));
  return {
    /** Goes on with another photo, or with what is suggested for the same one. */
    follow(next) {
      photo = next;
      const key = `${next?.image} ${next?.revision}`;
      if (key !== shown) touched = new Map();
      shown = key;
    },
    toggle: (name) => touched.set(name, !isOn(name)),
    /** Classes with what their buttons show, also those that were typed for this photo. */
    describe(classes) {
      const added = [...touched.keys()].filter((name) => !classes.some((known) => known.name === name));
      return [...classes, ...added.map((name) => ({ name, key: "" }))].map((one) => ({
        ...one,
        pressed: isOn(one.name),
        isGuess: !touched.has(one.name) && isSuggested(one.name),
      }));
    },
    getTouched: () => [...touched.keys()].join(", "),
  };
}
