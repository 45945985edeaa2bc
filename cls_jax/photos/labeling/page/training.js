// The classifier fitted to the current labels: save it as a run, or plan a training and start it.

import { get } from "./api.js";
import { build, openReport } from "./dom.js";
import { formatCount } from "./words.js";

const CURVE = { width: 300, height: 80 }; // As in index.html.
const BUSY = ["planning", "running", "stopping", "elsewhere"];
const TITLES = { stopping: "Stopping", done: "Finished", stopped: "Stopped", failed: "Failed" };

let asked = "10"; // Minutes, as they were typed last.

/** `onEnd` is called when a training has begun or ended. */
export function createTraining(app, onEnd) {
  let phase = null;
  let isRunning = false;
  let offered = 0; // Minutes.

  const act = (verb, content) => app.run(() => app.post(verb, content));
  const start = (kind, length) => act("train", { kind, minutes: length });
  const parts = build("training", {
    save: () => start("instant", 0),
    train: () => act("plan", { minutes: Number(asked) }),
    minutes: () => (asked = minutes.value),
    accept: () => start("trained", offered),
    stop: () => act("stop"),
    report: () => app.run(() => openReport(app, {})),
  });
  const { element, minutes, save, train, progress, title, bar, curve, detail, command, inUse, elsewhere, accept, stop, report } = parts;
  minutes.value = asked;

  /** Shows where a training is, or how the last one ended. Returns whether one is running. */
  async function follow() {
    const state = await get("training");
    isRunning = BUSY.includes(state.phase);
    elsewhere.textContent = state.phase === "elsewhere" ? state.message : "";
    progress.hidden = ["none", "elsewhere"].includes(state.phase);
    // A training needs two classes with labels, and only one runs at a time.
    const hasClasses = app.state.classes.filter(({ count }) => count).length > 1;
    save.disabled = train.disabled = isRunning || !hasClasses;
    if (!progress.hidden) show(state);
    if (phase && phase !== state.phase) {
      onEnd();
      if (!progress.hidden) app.announce(`${title.textContent}. ${detail.textContent}`, false);
    }
    phase = state.phase;
    return isRunning;
  }

  function show(state) {
    title.textContent = describeTitle(state);
    bar.hidden = !isRunning;
    if (state.steps) [bar.max, bar.value] = [state.steps, state.step];
    else bar.removeAttribute("value");
    draw(curve, state);
    detail.textContent = describeDetail(state);
    command.textContent = state.command;
    command.parentElement.hidden = state.phase === "planned";
    inUse.textContent = state.used && `In use: ${state.used}.`;
    // At its last step, it ends by itself.
    stop.hidden = !isRunning || state.phase === "stopping" || (state.steps > 0 && state.step >= state.steps);
    stop.textContent = state.step ? "Stop and keep" : "Stop";
    report.hidden = !(state.has_report && state.phase === "done");
    accept.hidden = state.phase !== "planned";
    if (!accept.hidden) offer(state);
  }

  function offer({ minutes: wanted, offer: found }) {
    offered = found.is_possible ? wanted : found.minutes;
    const length = found.is_possible ? "Start training" : `Train for ${formatCount(offered, "minute")}`;
    accept.textContent = `${length}: until about ${formatClock(found.minutes)}`;
  }

  return { element, follow };
}

function describeTitle({ phase, kind, minutes, run, offer }) {
  if (phase === "planned") return offer.sentence;
  if (phase === "planning") return `What a training of ${formatCount(minutes, "minute")} would do here`;
  return `${TITLES[phase] ?? (kind === "instant" ? "Saving" : "Training")}: ${run}`;
}

function describeDetail({ phase, message, step, steps, seconds, left, curve, curve_of: what }) {
  if (phase === "stopping") return step ? "Ending here, to compare what it has learned…" : "Stopping…";
  if (BUSY.includes(phase)) {
    const rest = left ? `about ${formatTime(left)} left` : "";
    const drawn = curve.length > 1 ? `${what}: ${curve.at(-1)[1]}` : "";
    return [message || `Step ${step} of ${steps}`, drawn, formatTime(seconds), rest].filter(Boolean).join(" · ");
  }
  return message;
}

function formatClock(minutes) {
  return new Date(Date.now() + 60_000 * minutes).toLocaleTimeString("en", { timeStyle: "short" });
}

/** As "1:05 min". */
function formatTime(seconds) {
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} min`;
}

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
  curve.ariaLabel = `${what}: ${first[1]} at step ${first[0]}, ${last[1]} at step ${last[0]}`;
}
