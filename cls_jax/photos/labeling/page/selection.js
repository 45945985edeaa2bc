// Which photos of a grid the keys are for: the selected ones, or else the one with the ring. The ring,
// the panel, its count and the keys all read this one value. Each function returns a new one.

export const MANY = 24; // Photos of which more get a class only by a second press of the same.

/** None of some images is selected but those in `selected`. The keyboard is at a place, with the ring or not. */
export function start(images, { selected = [], place = 0, hasRing = false } = {}) {
  const known = new Set(images);
  return change({ images }, { selected: new Set([...selected].filter((image) => known.has(image))), place, hasRing });
}

/** The images that the keys are for, in their order. */
export function getTargets({ images, selected, place, hasRing }) {
  if (selected.size) return images.filter((image) => selected.has(image));
  return hasRing ? images.slice(place, place + 1) : [];
}

/** Goes to a place and puts the ring there. Ranges begin here. */
export function move(value, place) {
  return change(value, { place: Math.max(0, Math.min(value.images.length - 1, place)), hasRing: true });
}

/** Selects all from where ranges begin to a place, beside those selected before. */
export function stretch(value, place) {
  const [first, last] = [Math.min(value.anchor, place), Math.max(value.anchor, place)];
  const selected = new Set([...value.kept, ...value.images.slice(first, last + 1)]);
  return { ...value, place, selected };
}

/** Selects the photo in a place, or takes it out again. A mouse leaves no ring there. */
export function toggle(value, place, hasRing = false) {
  const selected = new Set(value.selected);
  if (!selected.delete(value.images[place])) selected.add(value.images[place]);
  return change(value, { selected, place, hasRing });
}

export function select(value, images) {
  return change(value, { selected: new Set(images) });
}

/** Selects nothing, and then leaves no ring either. */
export function clear(value) {
  return change(value, { selected: new Set(), hasRing: value.selected.size > 0 && value.hasRing });
}

function change(value, changes) {
  const { selected, place } = { ...value, ...changes };
  return { ...value, ...changes, kept: selected, anchor: place };
}
