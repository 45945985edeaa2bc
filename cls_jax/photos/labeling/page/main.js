// The page: its state, its views and what they share.

import * as api from "./api.js";
import * as check from "./check.js";
import * as classes from "./classes.js";
import * as suspects from "./suspects.js";
import * as next from "./next.js";
import * as photos from "./photos.js";
import * as result from "./result.js";
import * as tryIt from "./try.js";
import { build, create, createPhoto, fillTemplates } from "./dom.js";
import { findTyped, guard, keepFocus } from "./guards.js";
import { choose, kind } from "./kinds.js";
import { describeAnswer, describeChanged, describeUndone, formatCount } from "./words.js";

const VIEWS = { next, check, suspects, classes, photos, result, try: tryIt };
const POLL_MS = { reading: 500, ready: 2000, failed: 5000 };
const TOAST_MS = 6000;
const SLOW_MS = 1000; // After which an action says that it is still busy.
const SAVING = "Saving…"; // Until it no longer is.
const REFUSED = "Not taken: the last step was still being saved. Look at what is shown, then press again.";
const DROPPED = "Nothing that came after it was saved.";
const UNSEEN = "A photo is not shown yet: press again.";
const REPEAT_MS = 700;
const SCAN_MS = 30_000; // Minimum between two scans for new photos.

const byId = (id) => document.getElementById(id);
const [root, toast, status] = ["view", "toast", "status"].map(byId);
let view = null;
let viewName = "next";
let busy = false;
let entered = null; // Where a view that was not shown before is scrolled to.
let isIncomplete = false; // Whether the view is, since the server could not be reached.
let hasRefused = false; // Whether a key or a click came meanwhile.
const edited = new WeakSet(); // Fields that got text since their last Enter.
const queue = []; // What is done next, when it no longer is.
let toastTimer = 0;
let turn = 0; // The number of what is repeated.
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
    if (busy || !areShown) app.announce(busy ? REFUSED : reason);
    hasRefused ||= busy;
    return busy || !areShown;
  },
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
    const waiting = setTimeout(() => hasRefused || app.announce(SAVING), SLOW_MS);
    try {
      await action();
      while (queue.length) await queue.shift()();
      // Not hidden by what the action has said of itself.
      const said = [SAVING, REFUSED].includes(toast.textContent) ? "" : toast.textContent;
      if (hasRefused) showToast(`${said} ${REFUSED}`.trim());
    } catch (error) {
      report(error);
      if (queue.length) showToast(`${toast.textContent} ${DROPPED}`);
      queue.length = 0;
    } finally {
      clearTimeout(waiting);
      busy = false;
      if (toast.textContent === SAVING) hideToast();
    }
    await render();
    keepFocus(root);
  },
  announce(text, isVisible = true) {
    status.textContent = text;
    if (isVisible) showToast(text);
  },
  pin(item) {
    app.pinned = item;
    render();
  },
  async scan(isAsked = false) {
    if (app.state?.phase !== "ready" || (!isAsked && Date.now() - scanned < SCAN_MS)) return;
    scanned = Date.now();
    try {
      const { new: added, replaced, unreadable, gone } = await api.post("scan");
      const counts = [
        [added, "new photo"],
        [replaced, "photo replaced by another one: asked again", "photos replaced by others: asked again"],
        [unreadable, "file that cannot be read", "files that cannot be read"],
        [gone, "photo no longer in the folder", "photos no longer in the folder"],
      ];
      const news = counts.filter(([count]) => count).map((one) => formatCount(...one));
      if (news.length || isAsked) app.announce(`${news.join(", ") || "No new photos"}.`);
      await refresh();
    } catch (error) {
      if (isAsked) report(error);
    }
  },
  /** Calls `check` for the view that is shown, and again while it returns that something is worked out. */
  async repeat(check) {
    const own = (turn += 1);
    if (await check()) setTimeout(() => own === turn && app.repeat(check).catch(report), REPEAT_MS);
  },
  report,
  refresh,
  /** The photos that the view "photos" shows first, instead of all. */
  look: null,
  showPhotos(look) {
    app.look = look;
    show("photos");
  },
  show,
  /** Whether a round of random photos is being checked. */
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
  app.announce(error.message, error.status);
}

function hideToast() {
  toast.hidden = true;
  toast.textContent = status.textContent = "";
}

function showToast(text) {
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
    button.ariaCurrent = button.dataset.view === name ? "page" : null;
  }
  view?.unmount?.();
  view = null;
  turn += 1;
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
    root.ariaBusy = "true";
  }
  const current = view;
  try {
    await current.update(state);
  } catch (error) {
    report(error);
    isIncomplete = error.status === 0;
  }
  if (view && view !== current) return;
  root.ariaBusy = null;
  if (entered !== null) scrollTo(0, entered);
  entered = null;
}

function renderFrame({ folder, counts, recent, phase, progress, can_undo: canUndo }) {
  byId("folder").textContent = folder;
  byId("classes-view").textContent = kind.heading;
  document.title = `${folder}: label photos`;
  const share = Math.floor((100 * progress[0]) / (progress[1] || 1));
  const reading = phase === "reading" ? ` · reading the photos: ${share}%` : "";
  byId("count").textContent = `${counts.labeled.toLocaleString("en")} of ${counts.images.toLocaleString("en")} labeled${reading}`;
  byId("undo").disabled = !canUndo;
  byId("strip").replaceChildren(...recent.map(createStripItem));
}

function createStripItem(item) {
  const { element, open, name } = build("answer", { open: () => app.run(() => app.open(item), true) });
  name.textContent = describeAnswer(item);
  open.title = item.name;
  open.ariaLabel = `${item.name}: ${name.textContent}. Change`;
  open.prepend(createPhoto(item, "small"));
  return element;
}

function renderProgress({ phase, message, progress: [done, total] }) {
  if (phase === "failed") return renderFailure(message);
  const isRead = total > 0 && done >= total;
  const { element, title, bar, text } = build("reading");
  title.textContent = isRead ? "Comparing photos…" : "Reading photos…";
  bar.max = total || 1;
  bar.value = done;
  text.textContent = isRead
    ? "All photos have been read."
    : `${done.toLocaleString("en")} of ${formatCount(total, "photo")}. This is slow only the first time.`;
  root.replaceChildren(element);
}

function renderFailure(message) {
  root.replaceChildren(create("div", { class: "wait", role: "alert" }, create("h2", {}, message)));
}

async function refresh() {
  const before = app.state;
  const state = await api.get("state");
  byId("stopped").close();
  // A decision posted meanwhile has returned a newer state, and asks about another photo than this one.
  if (app.state !== before) return;
  // A training and the classifier go on while no answer changes the version.
  const isNew = ["version", "is_training", "named_right", "named_by"].some((key) => state[key] !== before?.[key]);
  if (!(isNew || isIncomplete) || busy) return;
  if (!before) {
    choose(state.has_tags);
    fillTemplates(kind);
  }
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
    if (view?.takeBack?.()) return;
    const before = app.state.classes;
    const { images: [photo], changes, undone, classes } = await app.post("undo");
    const changed = describeChanged(before, classes);
    const what = undone.count ? describeUndone(photo?.name, undone, changed) : changed;
    app.announce(`Undone${what && `: ${what}`}.`);
    view?.onUndone?.(changes, photo);
  }, true);
}

function onKey(event) {
  const { key, target, shiftKey, altKey } = event;
  const hasModifier = event.ctrlKey || event.metaKey || altKey;
  const isControl = hasModifier && !shiftKey && !altKey;
  const isUndo = isControl && key.toLowerCase() === "z";
  const isField = target.matches("input, select");
  if (key === "Enter") edited.delete(target);
  // Ctrl Z is for the text of a field that has some, or had since its last Enter.
  const isOfText = target.matches("input") && (target.value || edited.has(target));
  if (isField && (!isUndo || isOfText)) return;
  if (isUndo && event.repeat) return event.preventDefault();
  if (target.matches("button, a") && [" ", "Enter"].includes(key)) return; // Which it presses.
  const typed = findTyped();
  // The browser writes into the field that has the focus by then.
  if (typed && (isUndo || key === "Backspace" || (key.length === 1 && !hasModifier))) return typed.focus();
  // Not on a control of another kind, where the key may be meant for it.
  const isElsewhere = target.matches("button:not(.class, .tile), a");
  // With another key, those that answer or undo mean other things, but for a name that was typed.
  const isCombined = shiftKey && (key === " " || key === "Backspace" || (key === "Enter" && !typed));
  if (isUndo) undo();
  else if (isControl && key.toLowerCase() === "a" && view?.selectAll) view.selectAll();
  else if (hasModifier || isCombined) return;
  else if (key === "Backspace" && !isElsewhere) undo();
  else if (!view?.onKey(event)) return;
  event.preventDefault();
}

for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => show(button.dataset.view));
}
byId("undo").addEventListener("click", undo);
document.addEventListener("input", ({ target }) => edited.add(target));
guard(app.announce);
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
