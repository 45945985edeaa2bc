// One large photo and the classes beside it.

import { get, setQuestion } from "./api.js";
import { createChooser } from "./chooser.js";
import { build, createPhoto } from "./dom.js";
import { createPace, NEXT } from "./guards.js";
import { kind } from "./kinds.js";
import { describeAnswer, describeUnsaved, formatCount } from "./words.js";
import { createZoom } from "./zoom.js";

const BROKEN = "This photo cannot be read. Skip it.";

export function mount(root, app) {
  let current = null;
  let question = null; // The photo that is asked about, unless it was answered here. It is shown if none is pinned.
  let isRefused = false; // Whether the last answer was, with a message of its own.
  let isShown = false; // Whether the current photo has been displayed, and long enough for an answer.
  let isPainted = false; // Whether it has been displayed.
  let isBroken = false; // Whether it could not be decoded. Then it can only be skipped.
  const pace = createPace();
  const press = (key) => () => zoom.onKey({ key });
  let preloaded = new Map();

  const refuses = () => !current || app.refuses(isShown, isPainted ? NEXT : undefined);
  const answer = kind.createAnswer({ app, decide, refuses, render: () => renderClasses(app.state) });
  const parts = build("next", { confirm: answer.confirm, skip: () => decide("skip"), example: setExample, back: () => app.close(), enlarge: press("+"), screen: press("*") });
  const { frame, photo, panel } = parts;
  const zoom = createZoom(frame);
  const chooser = createChooser({
    onChoose: answer.choose,
    onNone: () => decide("none"),
    announce: app.announce,
    onSkip: () => decide("skip"),
  });
  parts.back.after(chooser.element);
  parts.skip.before(chooser.none);
  root.append(parts.element);

  function setExample() {
    return app.run(async () => {
      await app.post("example", { image: current.image });
      app.announce(`${current.name} is now the example for ${current.label}.`);
    });
  }

  function renderClasses({ classes }) {
    const lost = answer.follow(current);
    if (lost) app.announce(`The ${kind.nouns} of ${lost} were not saved.`);
    chooser.update(answer.describe(classes), current.proposals);
  }

  /** Records a decision if the current photo has been displayed. Returns whether it did. */
  function decide(decision, label = "", adds = false) {
    if (refuses()) return false;
    if (isBroken && label) {
      app.announce(BROKEN);
      return false;
    }
    const { image, name, revision, check } = current;
    const typed = chooser.getTyped();
    const { pinned } = app;
    pace.answer();
    app.run(async () => {
      isRefused = true;
      try {
        await app.post("decide", { changes: [[image, revision, decision, label]], adds });
      } catch (error) {
        if (typed && label && error.status !== 409) chooser.type(label); // Enter tries again.
        throw error;
      }
      isRefused = false;
      if (question?.image === image) question = null;
      current = null;
      answer.forget();
      app.announce(`${name}: ${describeAnswer({ label, decision })}.`, false);
      if (pinned?.from) app.close(pinned);
      else if (check && app.isChecking && !app.state.sample) app.show("result"); // Which says what came of it.
    });
    return true;
  }

  function update(state) {
    app.isChecking ||= state.phase === "ready" && state.sample > 1;
    const before = current; // Null after an answer. The class of the next photo may be typed already.
    if (app.pinned) {
      current = app.pinned;
      if (current.isBack) pace.slowDown(); // An undo takes its time, and the key may be for another photo.
    } else {
      const asked = state.next.find(({ image }) => image === question?.image);
      // The photo that a class is typed for stays, even if another window has labeled it meanwhile.
      current = asked ?? (chooser.isChoosing() ? before : null) ?? state.next[0] ?? null;
      follow(state);
      keepProposals(before, state.classes);
    }
    photo.hidden = panel.hidden = !current;
    parts.done.hidden = current;
    if (!current) return chooser.clear();
    show(state);
    const isOther = before ? before.image !== current.image : !chooser.hasFocus();
    if (isOther) forget(before?.name);
    renderClasses(state);
    describe(state);
    if (!answer.describe(state.classes).length) chooser.focus(); // The first one is typed.
  }

  function describe(state) {
    const given = current.decision && describeAnswer(current);
    parts.title.textContent = given ? `Your answer: ${given}` : kind.question;
    parts.back.hidden = !app.pinned || current.isBack;
    parts.place.textContent = `Back to ${app.pinned?.from ? app.pinned.from.view : "the question"}`;
    parts.caption.textContent = current.name + (given ? ` · currently ${given}` : "");
    parts.live.textContent = state.named_right;
    parts.random.hidden = !current.check;
    parts.random.textContent =
      state.phase === "reading"
        ? "A random photo, until all photos have been read."
        : `${formatCount(state.sample, "random photo")} left to check. What the classifier thinks of them is hidden so that it does not sway you.`;
    parts.example.hidden = !state.classes.some(({ name }) => name === current.label);
    parts.example.textContent = `Use as the example of ${current.label}`;
  }

  /** Takes away what was typed, which was for another photo than is shown now. */
  function forget(name = "another photo") {
    const text = chooser.getTyped();
    if (chooser.isChoosing()) chooser.clear();
    if (text) app.announce(describeUnsaved(text, name));
  }

  /** What was chosen and not saved is what an undo takes back first. Returns whether there was any. */
  function takeBack() {
    const isTouched = answer.forget() !== "";
    if (isTouched) app.announce(`${kind.heading} as they were.`);
    return isTouched;
  }

  function unmount() {
    setQuestion(null);
    if (current) forget(current.name);
  }

  /** The first proposals of a photo stay while it is shown, so that Enter takes what was read. */
  function keepProposals(before, classes) {
    const isSame = before?.image === current?.image && before?.proposals.length;
    const areThere = ({ label }) => classes.some(({ name }) => name === label);
    if (isSame && before.proposals.every(areThere)) current = { ...current, proposals: before.proposals };
  }

  /** Says why another photo than before is asked about, unless it was answered here. */
  function follow({ recent }) {
    if (question && question.image !== current?.image) {
      pace.slowDown();
      const isLabeled = recent.some(({ image }) => image === question.image);
      const reason = isLabeled ? "was labeled elsewhere" : "needs no answer anymore";
      if (!isRefused) app.announce(`${question.name} ${reason}.${current ? " This is another photo." : ""}`);
    }
    isRefused = false;
    question = current;
    setQuestion(current?.image ?? null);
  }

  function show(state) {
    const before = preloaded;
    preloaded = new Map();
    for (const item of [current, ...state.next]) {
      const isKnown = before.has(item.image) && before.get(item.image).isShown !== false;
      // One that is broken is tried again: its folder may have been unplugged.
      if (!isKnown) before.set(item.image, createPhoto(item, "large"));
      preloaded.set(item.image, before.get(item.image));
    }
    const picture = preloaded.get(current.image);
    if (frame.firstChild !== picture) {
      frame.replaceChildren(picture);
      zoom.reset();
      waitFor(picture);
    }
  }

  async function waitFor(picture) {
    isShown = isPainted = false;
    photo.ariaBusy = "true";
    isBroken = !(await picture.shown);
    if (isBroken) await app.refresh().catch(app.report); // Its file may be gone.
    await new Promise(requestAnimationFrame); // Before it is painted,
    await new Promise(requestAnimationFrame); // and after.
    if (frame.firstChild !== picture) return;
    isPainted = true;
    pace.begin();
    const pause = pace.getPause();
    if (pause) await new Promise((resolve) => setTimeout(resolve, pause));
    if (frame.firstChild !== picture) return;
    isShown = true;
    photo.ariaBusy = "false";
    if (isBroken) app.announce(BROKEN);
  }

  /** Goes to the answer before the one that is shown (1), or to the one after it (-1). */
  async function move(step) {
    const { recent } = app.state;
    const place = (app.pinned?.place ?? recent.findIndex(({ image }) => image === app.pinned?.image)) + step;
    if (place < 0) return app.pin(null);
    const found = recent[place] ?? (await get(`earlier/${place}`)).images[0];
    if (!found) return app.announce("There is no earlier answer.");
    app.announce(`${found.name}: ${describeAnswer(found)}`, false);
    app.pin({ ...found, place, from: app.pinned?.from });
  }

  function onKey(event) {
    const { key } = event;
    const step = { ArrowLeft: 1, ArrowRight: -1 }[key];
    if (zoom.onKey(event)) return true;
    // After what is being saved, and no key is for the photo that is still shown meanwhile.
    if (step) app.run(() => move(step), true);
    else if (key === " ") decide("skip");
    else if (chooser.isChoosing()) return chooser.onKey(event);
    else if (key === "Escape" && app.pinned) app.close();
    else if (key === "Enter" && answer.confirm()) return true;
    else if (key === "Enter" && current && !current.proposals.length) {
      app.announce("No class is proposed: press the key of one, or type its name.");
    } else return chooser.onKey(event);
    return true;
  }

  return { update, onKey, unmount, takeBack, onUndone: (_, photo) => photo && (app.pinned = { ...photo, isBack: true }) };
}
