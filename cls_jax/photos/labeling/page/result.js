// Label counts, and training, which shows the expected accuracy.

import { openWindow } from "./api.js";
import { create, createButton, formatCount, formatPercent } from "./dom.js";
import { createRuns } from "./runs.js";
import { createSorting } from "./sorting.js";
import { createTraining } from "./training.js";

export function mount(root, app) {
  const title = create("h2", {}, "Result");
  const content = create("div", { class: "page" }, title);
  const sorting = createSorting(app);
  const runs = createRuns(app);
  const training = createTraining(app, () => runs.update().catch(app.report));
  const others = create("div", { class: "page" });
  const body = create("div", { class: "page" }, sorting.element, training.element, runs.element);
  root.append(content, body, others);
  let version = -1;
  let named = null;

  async function update(state) {
    training.update(state);
    const figures = `${state.named_right} ${state.named_by}`;
    if (state.version === version && figures === named) return;
    version = state.version;
    named = figures;
    const result = await app.get("result");
    content.replaceChildren(title, createFigures(state, result), createTable(state, result), createNamer(state));
    others.replaceChildren(createNextStep(state), createUnreadable(result));
    training.fit();
    await Promise.all([sorting.update(), runs.update()]);
  }

  function createFigures({ counts }, { sure }) {
    const left = counts.images - counts.labeled - counts.none - counts.skipped;
    return create(
      "dl",
      { class: "figures" },
      createFigure("Labeled", counts.labeled, `of ${formatCount(counts.images, "photo")}`),
      createFigure("90% sure or more", sure ?? "–", `of ${formatCount(left, "other photo")}`),
    );
  }

  function createFigure(term, value, note) {
    const number = create("b", {}, value.toLocaleString("en"));
    return create("div", {}, create("dt", {}, term), create("dd", {}, number, create("span", {}, note)));
  }

  function createTable({ classes }, { proposed, mixed }) {
    const titles = ["Class", "Labels", "Others", "How sure", "Most mixed up with"];
    const head = titles.slice(0, mixed.length ? 5 : 3).map((title, i) =>
      create("th", { scope: "col", class: i % 4 ? "number" : undefined }, title),
    );
    const largest = Math.max(1, ...proposed);
    const rows = classes.map(({ name, count }, i) => {
      const bar = create("span", { class: "bar", "aria-hidden": "true" });
      bar.style.setProperty("--share", (proposed[i] ?? 0) / largest);
      return create(
        "tr",
        {},
        create("th", { scope: "row" }, name),
        create("td", { class: "number" }, count.toLocaleString("en")),
        create("td", { class: "number proposed-count" }, bar, (proposed[i] ?? 0).toLocaleString("en")),
        ...(mixed.length ? createMixed(name, mixed[i]) : []),
      );
    });
    return create(
      "table",
      { class: "result" },
      create("thead", {}, create("tr", {}, ...head)),
      create("tbody", {}, ...rows),
    );
  }

  /** How sure the photos of a class are, and those that may be of another one. */
  function createMixed(name, { confidence, partner, images } = { images: [] }) {
    const look = () =>
      app.showPhotos({
        title: `${name} or ${partner}`,
        hint: "The least certain first. Enter confirms what is suggested. Otherwise, press the key of a class.",
        sections: [{ title: "", images }],
      });
    const text = `${images.length.toLocaleString("en")} of both: ${partner}`;
    const label = `${text} or ${name}. Look at these`; // Begins with what is shown.
    const button = createButton({ click: look, class: "mixed", "aria-label": label, title: label }, text);
    return [
      create("td", { class: "number" }, confidence ? formatPercent(confidence) : "–"),
      create("td", {}, images.length ? button : "–"),
    ];
  }

  function createNamer({ named_by: namer }) {
    const others = `Others: photos without an answer, as named by ${namer}.`;
    const mixed = "Of both: those named as either class that may be the other.";
    return create("p", { class: "hint", hidden: !namer }, `${others} ${mixed}`);
  }

  function createNextStep({ command, networks }) {
    const copy = async () => {
      await navigator.clipboard.writeText(command);
      app.announce("Copied.", true);
    };
    return create(
      "section",
      { class: "go-on" },
      create("h3", {}, "In a terminal"),
      create("p", { class: "hint" }, networks),
      create("p", { class: "hint" }, "The labels are in labels.csv in the folder. To train on them:"),
      create(
        "div",
        { class: "command" },
        create("code", {}, command),
        createButton({ class: "primary", click: copy }, "Copy"),
      ),
      create("p", { class: "hint" }, "Add --instant to skip fine-tuning."),
    );
  }

  function createUnreadable({ unreadable, num_unreadable: count }) {
    return create(
      "section",
      { class: "go-on" },
      create("h3", {}, "Photos in the folder"),
      create(
        "p",
        { class: "hint" },
        count ? `${formatCount(count, "file")} cannot be read:` : "All files can be read.",
      ),
      create("ul", {}, ...unreadable.map(({ name, reason }) => create("li", {}, `${name}: ${reason}`))),
      createButton({ click: () => app.scan(true), class: "download" }, "Check for new photos"),
      createButton({ click: openWindow, class: "download", id: "window" }, "Open another window"),
    );
  }

  function unmount() {
    sorting.close();
    training.close();
  }

  return { update, unmount, onKey: () => false };
}
