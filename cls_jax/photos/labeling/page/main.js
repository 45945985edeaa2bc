// The page: its state, its views and what they share.

import * as api from "./api.js";
import * as check from "./check.js";
import * as classes from "./classes.js";
import * as suspects from "./suspects.js";
import * as next from "./next.js";
import * as photos from "./photos.js";
import * as result from "./result.js";
import * as tryIt from "./try.js";
import { build, create, createPhoto } from "./dom.js";
import { findTyped, guard, keepFocus } from "./guards.js";
import { describeDecision, formatCount } from "./words.js";

const VIEWS = { next, check, suspects, classes, photos, result, try: tryIt };
const POLL_MS = { reading: 500, ready: 2000, failed: 5000 };
const TOAST_MS = 6000;
const SLOW_MS = 1000; // After which an action says that it is still busy.
const SAVING = "Saving…"; // Until it no longer is.
const REFUSED = "Your next step came before the last one was saved: press again.";
const MISSED = "Not taken: the last answer was still being saved. This is the next photo.";
const DROPPED = "Nothing that came after it was saved.";
const UNSEEN = "A photo is not shown yet: press again.";
const SCAN_MS = 30_000; // Minimum between two scans for new photos.

const byId = (id) => document.getElementById(id);
const root = byId("view");
let view = null;
let viewName = "next";
let busy = false;
let entered = null; // Where a view that was not shown before is scrolled to.
let isIncomplete = false; // Whether the view is, since the server could not be reached.
let hasRefused = false; // Whether a key or a click came meanwhile.
const edited = new WeakSet(); // Fields that got text since their last Enter.
const queue = []; // What is done next, when it no longer is.
let toastTimer = 0;
let scanned = Date.now();

const app = {
  state: null,
  /** A photo that is shown instead of the suggested one, to change its label. */
  pinned: null,
  /**
   * Whether an answer comes too early: during another action, or before its photos are shown. Says so,
   * in the latter case with the reason.
   */
  refuses(areShown = true, reason = UNSEEN) {
    if (busy || !areShown) app.announce(busy ? REFUSED : reason, true);
    hasRefused ||= busy;
    return busy || !areShown;
  },
  get: api.get,
  getFile: api.getFile,
  /** Posts a change. The response is the new state. */
  async post(verb, content) {
    const answer = await api.post(verb, content);
    app.state = answer;
    if (verb === "decide") app.pinned = null;
    return answer;
  },
  /** Runs one action at a time, then renders. Errors become a message. Others are refused unless they wait. */
  async run(action, waits = false) {
    if (busy && waits) queue.push(action);
    if (waits ? busy : app.refuses()) return;
    busy = true;
    hasRefused = false;
    hideToast(); // What was said of the action before.
    const asked = app.state.next[0]?.image; // Which an answer in "next" is for.
    const waiting = setTimeout(() => hasRefused || app.announce(SAVING, true), SLOW_MS);
    try {
      await action();
      const isAnswer = !app.state.next.some(({ image }) => image === asked);
      while (queue.length) await queue.shift()();
      // Not hidden by what the action has said of itself.
      const said = byId("toast").textContent;
      const refused = viewName === "next" && !app.pinned && isAnswer ? MISSED : REFUSED;
      const isSaid = ["", SAVING, REFUSED].includes(said);
      if (hasRefused) showToast(isSaid ? refused : `${said} ${refused}`);
    } catch (error) {
      report(error);
      if (queue.length) showToast(`${byId("toast").textContent} ${DROPPED}`);
      queue.length = 0;
    } finally {
      clearTimeout(waiting);
      busy = false;
      if (byId("toast").textContent === SAVING) hideToast();
      if (byId("status").textContent === SAVING) byId("status").textContent = "";
    }
    await render();
    keepFocus(root);
  },
  announce(text, isVisible = false) {
    byId("status").textContent = text;
    if (isVisible) showToast(text);
  },
  pin(item) {
    app.pinned = item;
    render();
  },
  /** Scans the folder for new photos. */
  async scan(isAsked = false) {
    if (app.state?.phase !== "ready" || (!isAsked && Date.now() - scanned < SCAN_MS)) return;
    scanned = Date.now();
    try {
      const { new: added, replaced, unreadable, gone } = await api.post("scan");
      const counts = [
        ...(replaced ? [`${formatCount(replaced, "photo")} replaced by others, which are asked again`] : []),
        ...(unreadable ? [`${formatCount(unreadable, "file")} that cannot be read`] : []),
        ...(gone ? [`${formatCount(gone, "photo")} no longer in the folder`] : []),
      ];
      const isNews = added || counts.length;
      if (added || !isNews) counts.unshift(formatCount(added, "new photo"));
      if (isNews || isAsked) app.announce(`${counts.join(", ")}.`, true);
      await refresh();
    } catch (error) {
      if (isAsked) report(error);
    }
  },
  report,
  refresh,
  render: () => render(),
  /** The photos that the view "photos" shows first, instead of all. */
  look: null,
  showPhotos(look) {
    app.look = look;
    show("photos");
  },
  show,
  /** Whether random photos are asked because a person wants to check them. */
  isChecking: false,
  /** Whether the view is shown again as it was left, to open a photo. */
  isBack: false,
  /** Shows a photo in the view "next", which leads back to where it was opened. */
  open(item) {
    const from = viewName === "next" ? null : { view: viewName, top: scrollY };
    show("next", { pinned: { ...item, from } });
  },
  /** Goes back to where a photo was opened, or to the question. */
  close(pinned = app.pinned) {
    if (pinned?.from) show(pinned.from.view, { top: pinned.from.top });
    else app.pin(null);
  },
};

function report(error) {
  if (!(error instanceof api.RequestError)) throw error;
  if (!error.status && !byId("stopped").open) byId("stopped").showModal();
  if (error.status === 409) {
    app.state = error.body;
    app.pinned = null;
  }
  if (error.status) showToast(error.message);
  byId("status").textContent = error.message;
}

function hideToast() {
  byId("toast").hidden = true;
  byId("toast").textContent = "";
}

function showToast(text) {
  const toast = byId("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(toastTimer);
  if (text !== SAVING) toastTimer = setTimeout(hideToast, TOAST_MS);
}

/** Shows a view, with a photo that is pinned there, at its `top` or as it was left so many pixels below. */
function show(name, { pinned = null, top = null } = {}) {
  viewName = name;
  app.pinned = pinned;
  app.isBack = top !== null;
  entered = top ?? 0;
  if (name !== "photos") app.look = null;
  for (const button of document.querySelectorAll("nav button")) {
    if (button.dataset.view === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  view?.unmount?.();
  view = null;
  render();
}

async function render() {
  const { state } = app;
  if (!state) return;
  renderFrame(state);
  // Random photos can be labeled while the others are read.
  const isEarly = state.phase === "reading" && viewName === "next" && state.next.length;
  if (state.phase !== "ready" && !isEarly) {
    view = null;
    renderProgress(state);
    return;
  }
  if (isIncomplete) {
    view?.unmount?.();
    view = null;
    isIncomplete = false;
  }
  if (!view) {
    root.replaceChildren();
    view = VIEWS[viewName].mount(root, app);
    root.setAttribute("aria-busy", "true");
  }
  const current = view;
  try {
    await current.update(state);
  } catch (error) {
    report(error);
    isIncomplete = error.status === 0;
  }
  if (view && view !== current) return;
  root.removeAttribute("aria-busy");
  if (entered !== null) scrollTo(0, entered);
  entered = null;
}

function renderFrame({ folder, counts, recent, phase, progress, can_undo: canUndo }) {
  byId("folder").textContent = folder;
  document.title = `${folder}: label photos`;
  const of = counts.images.toLocaleString("en");
  const reading = phase === "reading" ? ` · ${describeProgress(progress)}` : "";
  byId("count").textContent = `${counts.labeled.toLocaleString("en")} of ${of} labeled${reading}`;
  byId("undo").disabled = !canUndo;
  byId("strip").replaceChildren(...recent.map(createStripItem));
}

function createStripItem(item) {
  const { element, open, name } = build("answer", { open: () => app.run(() => app.open(item), true) });
  name.textContent = item.label || describeDecision(item.decision);
  open.title = item.name;
  open.setAttribute("aria-label", `${item.name}: ${name.textContent}. Change`);
  open.prepend(createPhoto(item, "small"));
  return element;
}

/** How far the photos have been read, in a line. */
function describeProgress([done, total]) {
  return `reading the photos: ${Math.floor((100 * done) / (total || 1))}%`;
}

function renderProgress({ phase, message, progress: [done, total] }) {
  if (phase === "failed") return renderFailure(message);
  const isRead = total > 0 && done >= total;
  const { element, title, bar, text } = build("reading");
  title.textContent = isRead ? "Comparing photos…" : "Reading photos…";
  bar.max = total || 1;
  bar.value = done;
  const read = `${done.toLocaleString("en")} of ${formatCount(total, "photo")}. This is slow only the first time.`;
  text.textContent = isRead ? "All photos have been read." : read;
  root.replaceChildren(element);
}

function renderFailure(message) {
  root.replaceChildren(create("div", { class: "wait", role: "alert" }, create("h2", {}, message)));
}

/** Gets the state and renders it if it has changed. */
async function refresh() {
  const state = await api.get("state");
  byId("stopped").close();
  // A decision posted meanwhile has returned a newer state.
  const known = app.state ?? { version: -1 };
  // A training and the classifier go on while no answer changes the version.
  const hasChanged = ["is_training", "named_right", "named_by"].some((key) => state[key] !== known[key]);
  const isNew = state.version > known.version || (hasChanged && state.version === known.version);
  if (!(isNew || isIncomplete) || busy) return;
  app.state = state;
  await render();
}

async function poll() {
  if (!busy && document.visibilityState === "visible") {
    try {
      await refresh();
    } catch (error) {
      if (error.status === 403) return renderFailure(error.message); // Retrying cannot help.
      if (app.state) report(error);
      else renderFailure(error.message);
    }
  }
  setTimeout(poll, POLL_MS[app.state?.phase ?? "reading"]);
}

function undo() {
  return app.run(async () => {
    const before = app.state.classes;
    const { images, undone, classes } = await app.post("undo");
    const what = undone.count ? describeUndone(images[0], undone) : describeChanged(before, classes);
    app.announce(`Undone${what && `: ${what}`}.`, true);
    if (viewName === "next" && images.length === 1) app.pinned = { ...images[0], isBack: true };
  }, true);
}

/** What was undone: the only photo, or how many, and what they no longer are. */
function describeUndone(photo, { count, decision, label }) {
  const what = photo?.name ?? formatCount(count, "photo");
  if (!decision) return what;
  return `${what} ${count === 1 ? "is" : "are"} no longer ${label || describeDecision(decision)}`;
}

/** What an undo has changed about the classes, "" if nothing. */
function describeChanged(before, after) {
  const now = new Map(after.map((one) => [one.name, one]));
  const removed = before.find(({ name }) => !now.has(name));
  if (removed) return `${removed.name} is no longer a class`;
  for (const what of ["description", "example", "key"]) {
    const changed = before.find((one) => now.get(one.name)[what] !== one[what]);
    if (changed) return `the ${what} of ${changed.name}`;
  }
  return "";
}

/** Whether Ctrl Z is for the text of a field: it has some, or had since its last Enter. */
function undoesText(target) {
  return target.matches("input") && Boolean(target.value || edited.has(target));
}

/** Whether a key that answers or undoes is pressed with another one, which means other things. */
function isCombined({ key, shiftKey, ctrlKey, metaKey, altKey }) {
  return [" ", "Enter", "Backspace"].includes(key) && (shiftKey || ctrlKey || metaKey || altKey);
}

/** Whether a key writes or deletes text. */
function isText({ key, ctrlKey, metaKey, altKey }) {
  return key === "Backspace" || (key.length === 1 && !ctrlKey && !metaKey && !altKey);
}

function onKey(event) {
  const isControl = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey;
  const isUndo = isControl && event.key.toLowerCase() === "z";
  const isField = event.target.matches("input, select");
  if (isField && event.key === "Enter") edited.delete(event.target);
  if (isField && (!isUndo || undoesText(event.target))) return;
  if (isUndo && event.repeat) return event.preventDefault();
  const pressesButton = event.target.matches("button, a") && [" ", "Enter"].includes(event.key);
  if (pressesButton) return;
  // The browser writes into the field that has the focus by then.
  if (findTyped() && (isUndo || isText(event))) return findTyped().focus();
  const addsTyped = event.key === "Enter" && event.shiftKey && findTyped();
  if (isCombined(event) && !addsTyped) return;
  // Not on a control of another kind, where the key may be meant for it.
  const isElsewhere = event.target.matches("button:not(.class, .tile), a");
  if (isUndo || (event.key === "Backspace" && !isElsewhere)) undo();
  else if (!view?.onKey(event)) return;
  event.preventDefault();
}

for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => show(button.dataset.view));
}
byId("undo").addEventListener("click", undo);
document.addEventListener("input", ({ target }) => edited.add(target));
guard((text) => app.announce(text, true));
document.addEventListener("keydown", onKey);
addEventListener("focus", () => app.scan());
// A reload would lose what is typed, or marked as wrong: the browser asks.
addEventListener("beforeunload", (event) => {
  const fields = [...root.querySelectorAll(".class-row input")];
  const isChanged = fields.some(({ value, defaultValue }) => value !== defaultValue);
  if (isChanged || findTyped() || root.querySelector(".tile[aria-pressed=true]")) event.preventDefault();
});
// Otherwise a file dropped outside of the drop zone would replace the page.
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault());
// The printed address was opened in a tab that already shows the page.
addEventListener("hashchange", () => location.reload());
await api.open();
poll();
