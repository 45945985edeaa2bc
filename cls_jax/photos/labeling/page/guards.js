// Keys and clicks that were meant for what is no longer there: held keys, double clicks and the like.

// Within which a second click in the same place, or a second Enter, means the same. Double clicks take
// up to half a second.
const SECOND_MS = 600;
const NEAR = { mouse: 9, pen: 9, touch: 25 }; // Pixels between two clicks in the same place.

export const NEXT = "This is the next photo: look at it, then press again.";
// During which a photo that has just come gets no answer, as of a key that is pressed twice, unless the
// one before was answered in less time than others take.
const LOOK_MS = 300;
const HASTY_MS = 600;
const LOST = "Not taken: the button that you pressed is gone. Press again for what is shown now.";

let taken = -Infinity; // When Enter last took the class that a field held.
let clicked = { time: -Infinity }; // The last click: its button, place and time.
let pressed = -Infinity; // When Space or Enter last pressed a button, without another key since,
let pressedButton = null; // and which one.

/**
 * Keeps them from all buttons, fields and views. To be called before these listen to the document.
 * `announce` says what is not taken.
 */
export function guard(announce) {
  document.addEventListener("click", ignoreSecondClick, { capture: true });
  document.addEventListener("taken", ({ timeStamp }) => (taken = timeStamp));
  document.addEventListener("pointerdown", () => (pressed = -Infinity), { capture: true });
  document.addEventListener("mouseup", dropFocus, { capture: true });
  const ignoreLost = (event) => ignoreLostPress(event, announce);
  const ignore = [ignoreComposition, ignoreLost, ignoreRepeats, ignoreSecondEnter];
  for (const each of ignore) document.addEventListener("keydown", each, { capture: true });
}

/** The keys are for the view, and not for the button that a mouse has pressed, whether it was a click or not. */
function dropFocus() {
  document.activeElement.closest("button")?.blur();
}

/** A key that is held down must not label the photos that follow. */
function ignoreRepeats(event) {
  const answers = event.key.length === 1 || ["Enter", "Backspace"].includes(event.key);
  const types = event.target.matches("input") && event.key !== "Enter";
  if (!event.repeat || !answers || types) return;
  event.preventDefault();
  event.stopImmediatePropagation();
}

/** A second Enter, after one that took what was typed, must not label the next photo. */
function ignoreSecondEnter(event) {
  if (event.key !== "Enter" || event.timeStamp - taken > SECOND_MS || findTyped()) return;
  event.preventDefault();
  event.stopImmediatePropagation();
}

/** A second click in the same place, as of a double click, must not answer again. */
function ignoreSecondClick(event) {
  const button = event.target.closest("button");
  const { clientX: x, clientY: y, timeStamp: time } = event;
  const isKey = !event.detail; // The keyboard pressed it.
  const isNear = button === clicked.button || Math.hypot(x - clicked.x, y - clicked.y) < (NEAR[event.pointerType] ?? NEAR.mouse);
  const isReplaced = button === pressedButton || !pressedButton?.isConnected;
  const isSecond = isKey ? time - pressed < SECOND_MS && isReplaced : time - clicked.time < SECOND_MS && isNear;
  if (button && isSecond) {
    event.preventDefault();
    event.stopImmediatePropagation();
  } else if (!isKey) clicked = { button, x, y, time };
  else if (button) [pressed, pressedButton] = [time, button];
}

/**
 * Space or Enter must not answer for the next photo if the button that it pressed before is gone. The
 * first one that is no double press is told so, and the next one is for the photo.
 */
function ignoreLostPress(event, announce) {
  const isPress = [" ", "Enter"].includes(event.key);
  if (!isPress || event.target.closest("input, select, a")) pressed = -Infinity;
  // A view that is opened by a button may give the focus to a photo.
  const isLater = event.target.matches(".cell") && event.timeStamp - pressed > SECOND_MS;
  if (pressed === -Infinity || isLater || event.target.closest("button")) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (event.repeat || event.timeStamp - pressed < SECOND_MS) return;
  pressed = -Infinity;
  announce(LOST);
}

/** Gives the focus to the heading if the button that the keyboard pressed is gone. */
export function keepFocus(root) {
  if (pressed === -Infinity || document.activeElement !== document.body) return;
  const heading = root.querySelector("h2");
  if (heading) heading.tabIndex = -1;
  heading?.focus({ preventScroll: true });
}

/** The pace of a person who answers for one photo after the other. */
export function createPace() {
  let since = -Infinity; // When the photo came.
  let isHasty = true;
  return {
    /** The next photo is shown. */
    begin: () => (since = performance.now()),
    /** It has an answer. */
    answer: () => (isHasty = performance.now() - since < HASTY_MS),
    /** Whatever the pace was, the next photo is looked at. */
    slowDown: () => (isHasty = false),
    /** Milliseconds for which the photo gets no answer yet. */
    getPause: () => (isHasty ? 0 : Math.max(0, since + LOOK_MS - performance.now())),
  };
}

/** A key for an input method, as Enter that takes the characters it proposes, is no command. */
function ignoreComposition(event) {
  if (event.isComposing || event.keyCode === 229) event.stopImmediatePropagation();
}

/** The field for a class that holds text, whether it has the focus or not. */
export function findTyped() {
  const fields = [...document.querySelectorAll("input[data-class-field]:enabled")];
  return fields.find(({ value }) => value.trim());
}
