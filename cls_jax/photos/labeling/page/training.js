// The classifier fitted to the current labels: save it as a run, or plan a training and start it.

import { follow } from "./api.js";
import { build, openReport } from "./dom.js";
import { formatCount } from "./words.js";

const FIT_MS = 700; // Polling interval while a classifier is being fitted.
const CURVE = { width: 300, height: 80 }; // As in index.html.
const BUSY = ["planning", "running", "stopping"];
const TITLES = { stopping: "Stopping", done: "Finished", stopped: "Stopped", failed: "Failed" };

/** `onEnd` is called when a training has begun or ended. */
export function createTraining(app, onEnd) {
  const closing = new AbortController();
  let phase = null;
  let isFollowing = false;
  let isRunning = false;
  let offered = 0; // Minutes.

  const start = (kind, length) => act("train", { kind, minutes: length }).then(watch);
  const parts = build("training", {
    save: () => start("instant", 0),
    train: () => act("plan", { minutes: Number(minutes.value) }).then(watch),
    accept: () => start("trained", offered),
    stop: () => act("stop"),
    report: () => app.run(() => openReport(app, {})),
  });
  const { element, minutes, save, train, progress, title, bar, curve, detail, command, accept, stop, report } = parts;

  const act = (verb, content) => app.run(() => app.post(verb, content));

  async function watch() {
    if (isFollowing) return;
    isFollowing = true;
    try {
      await follow("events", show, closing.signal);
      while (app.state.is_training) { // Another training started meanwhile.
        await new Promise((resolve) => setTimeout(resolve, FIT_MS));
        await follow("events", show, closing.signal);
      }
    } catch (error) {
      if (!closing.signal.aborted) app.report(error);
    }
    isFollowing = false;
  }

  function show(state) {
    isRunning = BUSY.includes(state.phase);
    progress.hidden = state.phase === "none";
    enable();
    if (!progress.hidden) {
      title.textContent = describeTitle(state);
      bar.hidden = !isRunning;
      if (state.steps) [bar.max, bar.value] = [state.steps, state.step];
      else bar.removeAttribute("value");
      draw(curve, state);
      detail.textContent = describeDetail(state);
      command.textContent = state.command;
      command.parentElement.hidden = state.phase === "planned";
      // At its last step, it ends by itself.
      stop.hidden = !["planning", "running"].includes(state.phase) || (state.steps > 0 && state.step >= state.steps);
      stop.textContent = state.step ? "Stop and keep" : "Stop";
      report.hidden = !(state.has_report && state.phase === "done");
      accept.hidden = state.phase !== "planned";
      if (!accept.hidden) offer(state);
    }
    if (phase && phase !== state.phase) onEnd();
    if (phase && phase !== state.phase && !progress.hidden) app.announce(`${title.textContent}. ${detail.textContent}`);
    phase = state.phase;
  }

  /** The training that is possible: what was asked, or longer. */
  function offer({ minutes: asked, offer: found }) {
    offered = found.is_possible ? asked : found.minutes;
    const length = found.is_possible ? "Start training" : `Train for ${formatCount(offered, "minute")}`;
    accept.textContent = `${length}: until about ${formatClock(found.minutes)}`;
  }

  /** A training needs two classes with labels, and only one runs at a time. */
  function enable() {
    const hasClasses = app.state.classes.filter(({ count }) => count).length > 1;
    save.disabled = train.disabled = minutes.disabled = isRunning || !hasClasses;
  }

  watch(); // Shows how the last training ended.
  return {
    element,
    update(state) {
      enable();
      if (state.is_training) watch();
    },
    close() {
      closing.abort();
    },
  };
}

function describeTitle({ phase, kind, minutes, run, offer }) {
  if (phase === "planned") return offer.sentence;
  if (phase === "planning") return `What a training of ${formatCount(minutes, "minute")} would do here`;
  return `${TITLES[phase] ?? (kind === "instant" ? "Saving" : "Training")}: ${run}`;
}

/** Where it is and what is left of it, or how it ended and what is used now. */
function describeDetail({ phase, message, step, steps, seconds, left, used, curve, curve_of: what }) {
  if (phase === "stopping") return step ? "Ending here, to compare what it has learned…" : "Stopping…";
  if (BUSY.includes(phase)) {
    const rest = left ? `about ${formatTime(left)} left` : "";
    const drawn = curve.length > 1 ? `${what}: ${curve.at(-1)[1]}` : "";
    const parts = [message || `Step ${step} of ${steps}`, drawn, formatTime(seconds), phase === "running" ? rest : ""];
    return parts.filter(Boolean).join(" · ");
  }
  return [message, phase !== "planned" && used ? `In use: ${used}.` : ""].filter(Boolean).join(" ");
}

/** The time of day in so many minutes. */
function formatClock(minutes) {
  return new Date(Date.now() + 60_000 * minutes).toLocaleTimeString("en", { timeStyle: "short" });
}

/** As "1:05 min". */
function formatTime(seconds) {
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} min`;
}

/** Draws the accuracy or the loss over the steps so far. */
function draw(curve, { curve: points, curve_of: what }) {
  curve.toggleAttribute("hidden", points.length < 2);
  if (points.length < 2) return;
  const [first, last] = [points[0], points.at(-1)];
  const highest = Math.max(...points.map(([, loss]) => loss)) || 1;
  const places = points.map(([step, loss]) => {
    const x = ((step - first[0]) / (last[0] - first[0])) * CURVE.width;
    return `${x.toFixed(1)},${((1 - loss / highest) * (CURVE.height - 4) + 2).toFixed(1)}`;
  });
  curve.firstElementChild.setAttribute("points", places.join(" "));
  const text = `${what}: ${first[1]} at step ${first[0]}, ${last[1]} at step ${last[0]}`;
  curve.setAttribute("aria-label", text);
}
