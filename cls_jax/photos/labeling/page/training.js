// The classifier fitted to the current labels: save it as a run, or train longer.

import { follow } from "./api.js";
import { createEstimate } from "./estimate.js";
import { create, createButton, formatCount, openReport } from "./dom.js";

const FIT_MS = 700; // Polling interval while a classifier is being fitted.
const CURVE = { width: 300, height: 80 }; // As in index.html.
const ENDS = { done: "Finished", stopped: "Stopped", failed: "Failed" };

/** `onEnd` is called when a training has begun or ended. */
export function createTraining(app, onEnd) {
  const closing = new AbortController();
  let timer = 0;
  let phase = null;
  let version = -1;
  let isFollowing = false;
  let isRunning = false;

  const about = create("p", { class: "hint about" }, "Learning from your labels…");
  const estimate = createEstimate();
  const accuracy = create("p", { class: "accuracy" });
  const minutes = create("input", {
    type: "number",
    id: "minutes",
    min: "1",
    max: "100000",
    step: "any",
    value: "10",
    class: "search minutes",
  });
  const start = (kind) => () => act("train", { kind, minutes: Number(minutes.value) });
  const save = createButton({ click: start("instant"), class: "primary", id: "save" }, "Save this classifier");
  const train = createButton({ click: start("trained"), id: "train" }, "Train longer");
  const check = createButton({ click: () => act("sample").then(app.showNext), id: "sample" }, "Check 20 random photos");
  const title = create("p", {});
  const bar = create("progress", { "aria-label": "Training", max: 1, value: 0 });
  const curve = createCurve();
  const detail = create("p", { class: "hint" });
  const command = create("code", {});
  const stop = createButton({ click: () => act("stop"), id: "stop" }, "Stop");
  const resume = createButton({ click: () => act("resume"), id: "resume" }, "Resume");
  const report = createButton({ click: () => app.run(() => openReport(app, {})), id: "report" }, "Open the report");
  const progress = create(
    "div",
    { class: "training", hidden: true },
    title,
    bar,
    curve.element,
    detail,
    create("div", { class: "actions" }, stop, resume, report),
    create("div", { class: "command" }, command),
  );
  const element = create(
    "section",
    { class: "go-on", "aria-label": "Classifier" },
    create("h3", {}, "Classifier"),
    accuracy,
    estimate.element,
    about,
    create("div", { class: "actions" }, check),
    create("p", { class: "hint" }, "Random photos measure how many are named right. Your answers are labels as well."),
    create(
      "div",
      { class: "actions" },
      save,
      train,
      create("label", { for: "minutes" }, "Minutes:"),
      minutes,
    ),
    create(
      "p",
      { class: "hint" },
      "Training longer can help or harm. The random photos that you checked are kept out of it: the networks are used only if they name clearly more of these right.",
    ),
    progress,
  );

  const act = (verb, content) => app.run(() => app.post(verb, content));

  /** Polls until the classifier of the current labels is fitted. */
  async function fit() {
    clearTimeout(timer);
    try {
      const found = await app.get("classifier");
      about.textContent = describe(found);
      accuracy.textContent = describeAccuracy(found);
      estimate.show(found.history);
      if (closing.signal.aborted) return;
      if (found.is_fitting) timer = setTimeout(fit, FIT_MS);
      else await app.refresh(); // All views then say the same.
    } catch (error) {
      app.report(error);
    }
  }

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
    isRunning = ["running", "stopping"].includes(state.phase);
    progress.hidden = state.phase === "none";
    enable();
    if (progress.hidden) return;
    const verb = state.kind === "instant" ? "Saving" : "Training";
    title.textContent = `${ENDS[state.phase] ?? verb}: ${state.run}`;
    bar.hidden = !isRunning;
    if (state.steps) [bar.max, bar.value] = [state.steps, state.step];
    else bar.removeAttribute("value");
    curve.show(state.curve);
    if (state.phase === "stopping") detail.textContent = "Saving, then stopping…";
    else if (isRunning) {
      const steps = state.steps ? `Step ${state.step} of ${state.steps}` : "";
      detail.textContent = [state.message || steps, formatTime(state.seconds)].filter(Boolean).join(" · ");
    } else {
      const use = state.phase === "done" ? `To use it: cls-jax predict ${state.run} IMAGES` : "";
      detail.textContent = [state.message, use].filter(Boolean).join(" ");
    }
    command.textContent = state.command;
    stop.hidden = state.phase !== "running";
    resume.hidden = !state.can_resume;
    report.hidden = !(state.has_report && state.phase === "done");
    if (phase && phase !== state.phase) onEnd();
    if (phase && phase !== state.phase) app.announce(`${title.textContent}. ${state.message}`);
    phase = state.phase;
  }

  /** A training needs two classes with labels, and only one runs at a time. */
  function enable() {
    const hasClasses = app.state.classes.filter(({ count }) => count).length > 1;
    save.disabled = train.disabled = minutes.disabled = isRunning || !hasClasses;
    const { images, labeled, none, skipped } = app.state.counts;
    check.disabled = images === labeled + none + skipped;
  }

  watch(); // Shows how the last training ended.
  return {
    element,
    fit,
    update(state) {
      enable();
      // Whether a training can be resumed depends on the labels.
      if (state.is_training || (state.version !== version && ["stopped", "failed"].includes(phase))) watch();
      version = state.version;
    },
    close() {
      clearTimeout(timer);
      closing.abort();
    },
  };
}

function describe({ is_fitting: isFitting, message, labels, classes }) {
  if (isFitting) return "Learning from your labels…";
  if (message) return message;
  return `Learned from ${formatCount(labels, "label")} of ${formatCount(classes, "class", "classes")}.`;
}

/** While newer answers are being learned, with the number of those that the figure is from. */
function describeAccuracy({ is_fitting: isFitting, accuracy, labels }) {
  if (!accuracy) return "";
  return isFitting ? `${accuracy} After ${formatCount(labels, "answer")}, being updated.` : accuracy;
}

/** As "1:05 min". */
function formatTime(seconds) {
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} min`;
}

/** The loss over the steps so far. */
function createCurve() {
  const element = document.getElementById("curve").content.firstElementChild.cloneNode(true);
  const line = element.firstElementChild;
  return {
    element,
    show(points) {
      element.toggleAttribute("hidden", points.length < 2);
      if (points.length < 2) return;
      const [first, last] = [points[0], points.at(-1)];
      const highest = Math.max(...points.map(([, loss]) => loss)) || 1;
      const places = points.map(([step, loss]) => {
        const x = ((step - first[0]) / (last[0] - first[0])) * CURVE.width;
        return `${x.toFixed(1)},${((1 - loss / highest) * (CURVE.height - 4) + 2).toFixed(1)}`;
      });
      line.setAttribute("points", places.join(" "));
      const text = `Loss: ${first[1]} at step ${first[0]}, ${last[1]} at step ${last[0]}`;
      element.setAttribute("aria-label", text);
    },
  };
}
