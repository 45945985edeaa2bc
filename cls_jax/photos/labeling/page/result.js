// What is known about the photos, the next step, and what the labels are good for.

import { get, getFile, openWindow } from "./api.js";
import { build, create, save } from "./dom.js";
import { createRuns } from "./runs.js";
import { createTraining } from "./training.js";
import { kind } from "./kinds.js";
import { formatCount } from "./words.js";

let percent = "95"; // Of the photos that must be right, as it was chosen last.

export function mount(root, app) {
  const act = (action) => () => app.run(action);
  const parts = build("result", {
    target: () => {
      percent = parts.target.value;
      return update(app.state).catch(app.report);
    },
    csv: act(() => download("csv")),
    xlsx: act(() => download("xlsx")),
    labels: act(downloadLabels),
    scan: () => app.scan(true),
    window: openWindow,
    answer: goOn,
    check: act(check),
    look: act(lookAt),
    use: act(() => ({ copies: copy, csv: () => download("csv") })[kind.useAs]()),
  });
  parts.target.value = percent;
  const runs = createRuns(app);
  const training = createTraining(app, () => runs.update().catch(app.report));
  parts.training.append(training.element, runs.element);
  root.append(parts.element);
  let version = -1;
  let named = null;

  async function update(state) {
    const figures = `${state.named_right} ${state.named_by}`;
    if (state.version !== version || figures !== named) {
      [version, named] = [state.version, figures];
      await renderAll(state);
    }
    await app.repeat(follow);
  }

  async function renderAll(state) {
    parts.command.textContent = state.command;
    parts.networks.textContent = state.networks;
    const result = await get("result");
    renderClasses(state, result);
    renderFiles(result);
    await runs.update();
  }

  /**
   * Says what is known, the next step, and where a training is. Returns whether any of it is being
   * worked out.
   */
  async function follow() {
    const asked = percent;
    const [found, isTraining] = await Promise.all([get(`step/${asked}`), training.follow()]);
    if (asked !== percent) return false;
    parts.accuracy.textContent = describeAccuracy(found);
    parts.about.textContent = describe(found);
    parts.step.textContent = found.is_fitting && !found.accuracy ? "" : found.sentence;
    parts.look.textContent = found.look ? `Look at these ${found.look.toLocaleString("en")}` : "Look at some";
    parts.look.disabled = !found.look;
    parts.answer.disabled = !found.open;
    parts.check.textContent = `Check ${found.missing}`;
    parts.check.disabled = !found.open || !found.accuracy; // It measures a classifier.
    // They keep their places, and only the next one is marked.
    for (const step of ["answer", "check", "look", "use"]) parts[step].classList.toggle("primary", step === found.kind);
    if (!found.is_fitting) await app.refresh(); // All views then say the same.
    return found.is_fitting || isTraining;
  }

  async function check() {
    await app.post("sample");
    goOn();
  }

  function goOn() {
    app.isChecking = app.state.sample > 0; // The last one leads back here.
    app.show("next");
  }

  async function lookAt() {
    const { images } = await app.post("look", { percent: Number(percent) });
    show("Photos to look at", images, true);
  }

  function show(title, images, isAsked) {
    const hint = `Confirm what is suggested, or give them another ${kind.noun}.`;
    app.showPhotos({ title, hint, sections: [{ title: "", images }], isAsked });
  }

  function renderClasses({ classes, named_by: namer }, { proposed, mixed, figures }) {
    const rows = classes.map(({ name, count }, i) => {
      const suggested = proposed[i] ?? 0; // A class may have been added since.
      const found = mixed[i] ?? { unsure: suggested, images: [] };
      return { ...found, name, figures: figures[name], count, all: count + suggested };
    });
    rows.sort((a, b) => b.unsure / (b.all || 1) - a.unsure / (a.all || 1));
    const most = Math.max(1, ...rows.map(({ all }) => all));
    parts.rows.replaceChildren(...rows.map((row) => createRow(row, most)));
    parts.namer.textContent = namer && `Photos without an answer are as named by ${namer}.`;
    parts.legend.hidden = !rows.length;
  }

  function createRow({ name, figures, count, unsure, partner, images, all }, most) {
    const cells = build("result-row", { mixed: () => show(`${name} or ${partner}`, images) });
    const shares = { answers: count, sure: all - count - unsure, unsure };
    for (const [kind, number] of Object.entries(shares)) cells[kind].style.width = `${(100 * number) / most}%`;
    cells.title.textContent = name;
    const counts = `${count.toLocaleString("en")} + ${(all - count).toLocaleString("en")}`;
    cells.counts.textContent = figures ? `${counts} · ${figures}` : counts;
    cells.number.textContent = unsure.toLocaleString("en");
    cells.mixed.hidden = !images.length;
    cells.could.textContent = `${partner}: ${formatCount(images.length, "photo")}`;
    cells.mixed.title = cells.mixed.textContent;
    return cells.element;
  }

  function renderFiles({ unreadable, num_unreadable: count }) {
    parts.unreadable.textContent = count ? `${formatCount(count, "file")} cannot be read:` : "All files can be read.";
    parts.files.replaceChildren(...unreadable.map(({ name, reason }) => create("li", {}, `${name}: ${reason}`)));
  }

  async function copy() {
    const { copies, unsure, place } = await app.post("copies", { unsure_below: Number(parts.limit.value) });
    const rest = unsure ? ` ${unsure.toLocaleString("en")} of them are in unsure.` : "";
    parts.copied.textContent = `${formatCount(copies, "photo")} copied into ${place}.${rest}`;
  }

  async function download(kind) {
    save(await getFile(`/api/proposals.${kind}?unsure_below=${Number(parts.limit.value)}`), `sorted.${kind}`);
  }

  async function downloadLabels() {
    const { value, selectedOptions } = parts.format;
    save(await getFile(`/api/labels/${value}`), selectedOptions[0].dataset.file);
  }

  return { update, onKey: () => false };
}

function describe({ is_fitting: isFitting, message, labels, classes, checked }) {
  if (isFitting) return "Learning from your labels…";
  if (message) return message;
  const measured = checked ? ` ${checked} The range above allows for a classifier that is wrongly sure of itself.` : "";
  return `Learned from ${formatCount(labels, "label")} of ${formatCount(classes, kind.noun, kind.nouns)}.${measured}`;
}

/** While newer answers are being learned, with the number of those that the figure is from. */
function describeAccuracy({ is_fitting: isFitting, accuracy, labels }) {
  if (!accuracy) return "";
  return isFitting ? `${accuracy} After ${formatCount(labels, "answer")}. Updating…` : accuracy;
}
