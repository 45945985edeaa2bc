// Keys and clicks that were meant for what is no longer there: held keys, double clicks and the like.

// Within which a second click in the same place, or a second Enter, means the same. Double clicks take
// up to half a second.
export const SECOND_MS = 600;
const NEAR = { mouse: 9, touch: 25 }; // Pixels between two clicks in the same place.

export const NEXT = "This is the next photo: look at it, then press again.";
// During which a photo that has just come gets no answer, as of a key that is pressed twice, unless the
// one before was answered in less time than others take.
const LOOK_MS = 300;
const SWAP_MS = 600; // The same for one that has come by itself, or by an undo.
const HASTY_MS = 600;
const LOST = "Not taken: the button that you pressed is gone. Press again for what is shown now.";
const NEVER = -Infinity;

/** What is known of the keys and clicks so far. */
export const START = {
  taken: NEVER, // When Enter last took, or named, what a field held.
  clicked: { time: NEVER }, // The last click: its button, place and time.
  pressed: NEVER, // When Space or Enter last pressed a button, without another key since,
  pressedButton: null, // and which one.
};

/**
 * What becomes of an event: { verdict, memory } with "pass", "stop" if nothing may get it, "drop" if
 * the browser may not either, or "lost" if a word is due as well.
 *
 * `event` has a type ("keydown", "click", "pointerdown" or "taken"), a `time` in milliseconds, and
 * - for clicks `button` (any value, or null), `x`, `y`, `pointer`, `isKey` (the keyboard pressed it) and
 *   `isGone` (the button that was pressed before is no longer there);
 * - for keys `key`, `isRepeat`, `isComposing`, `hasText` (a field for a class holds some) and `on`: what
 *   has the focus, "button", "input", "select", "link", "cell" or "".
 */
export function decide(event, memory) {
  if (event.type === "click") return decideClick(event, memory);
  if (event.type === "keydown") return decideKey(event, memory);
  const changes = event.type === "taken" ? { taken: event.time } : { pressed: NEVER };
  return { verdict: "pass", memory: { ...memory, ...changes } };
}

/** A second click in the same place, as of a double click, must not answer again. */
function decideClick({ time, button, x, y, pointer, isKey, isGone }, memory) {
  const { clicked, pressed, pressedButton } = memory;
  const isNear = button === clicked.button || Math.hypot(x - clicked.x, y - clicked.y) < (NEAR[pointer] ?? NEAR.mouse);
  const isReplaced = button === pressedButton || isGone;
  const isSecond = isKey ? time - pressed < SECOND_MS && isReplaced : time - clicked.time < SECOND_MS && isNear;
  if (button && isSecond) return { verdict: "drop", memory };
  if (!isKey) return { verdict: "pass", memory: { ...memory, clicked: { button, x, y, time } } };
  return { verdict: "pass", memory: button ? { ...memory, pressed: time, pressedButton: button } : memory };
}

function decideKey(event, memory) {
  const { time, key, isRepeat, isComposing, hasText, on } = event;
  // A key for an input method, as Enter that takes the characters it proposes, is no command.
  if (isComposing) return { verdict: "stop", memory };
  const isPress = [" ", "Enter"].includes(key);
  if (!isPress || ["input", "select", "link"].includes(on)) memory = { ...memory, pressed: NEVER };
  // Space or Enter must not answer for the next photo if the button that it pressed before is gone. The
  // first one that is no double press is told so, and the next one is for the photo. A view that is
  // opened by a button may have put the ring on a photo.
  const isSecond = time - memory.pressed < SECOND_MS;
  const isLost = memory.pressed > NEVER && on !== "button" && (on !== "cell" || isSecond);
  if (isLost && (isRepeat || isSecond)) return { verdict: "drop", memory };
  if (isLost) return { verdict: "lost", memory: { ...memory, pressed: NEVER } };
  // A key that is held down must not label the photos that follow.
  const answers = key.length === 1 || ["Enter", "Backspace"].includes(key);
  if (isRepeat && answers && (on !== "input" || key === "Enter")) return { verdict: "drop", memory };
  // A second Enter, after one that took what was typed, must not label the next photo.
  const isTaken = key === "Enter" && time - memory.taken <= SECOND_MS;
  return { verdict: isTaken && !hasText ? "drop" : "pass", memory };
}

let memory = START;

/**
 * Keeps them from all buttons, fields and views. To be called before these listen to the document.
 * `announce` says what is not taken.
 */
export function guard(announce) {
  const judge = (event, described) => {
    const { timeStamp: time, type } = event;
    const { verdict, memory: known } = decide({ type, time, ...described }, memory);
    memory = known;
    if (verdict === "pass") return;
    event.stopImmediatePropagation();
    if (verdict !== "stop") event.preventDefault();
    if (verdict === "lost") announce(LOST);
  };
  const describers = { click: describeClick, keydown: describeKey };
  for (const type of ["click", "keydown", "pointerdown", "taken"]) {
    document.addEventListener(type, (event) => judge(event, describers[type]?.(event)), { capture: true });
  }
  // The keys are for the view, and not for the button that a mouse has pressed, whether it was a click or not.
  document.addEventListener("mouseup", () => document.activeElement.closest("button")?.blur(), { capture: true });
}

function describeClick({ target, clientX: x, clientY: y, pointerType: pointer, detail }) {
  return { button: target.closest("button"), x, y, pointer, isKey: !detail, isGone: !memory.pressedButton?.isConnected };
}

function describeKey({ target, key, repeat: isRepeat, isComposing, keyCode }) {
  const kinds = { button: "button", input: "input", select: "select", a: "link", ".cell": "cell" };
  const selector = Object.keys(kinds).find((one) => target.closest(one));
  return { key, isRepeat, isComposing: isComposing || keyCode === 229, hasText: findTyped(), on: kinds[selector] ?? "" };
}

/** Gives the focus to the heading if the button that the keyboard pressed is gone. */
export function keepFocus(root) {
  if (memory.pressed === NEVER || document.activeElement !== document.body) return;
  const heading = root.querySelector("h2");
  if (heading) heading.tabIndex = -1;
  heading?.focus({ preventScroll: true });
}

/** The pace of a person who answers for one photo after the other, by a clock in milliseconds. */
export function createPace(now = () => performance.now()) {
  let since = NEVER; // When the photo came.
  let isHasty = true;
  let look = LOOK_MS;
  return {
    begin: () => (since = now()),
    answer: () => {
      isHasty = now() - since < HASTY_MS;
      look = LOOK_MS;
    },
    /** Whatever the pace was, the next photo is looked at. */
    slowDown: () => {
      isHasty = false;
      look = SWAP_MS;
    },
    /** Milliseconds for which the photo gets no answer yet. */
    getPause: () => (isHasty ? 0 : Math.max(0, since + look - now())),
  };
}

/** The field for a class that holds text, whether it has the focus or not. */
export function findTyped() {
  const fields = [...document.querySelectorAll("input[data-class-field]:enabled")];
  return fields.find(({ value }) => value.trim());
}
