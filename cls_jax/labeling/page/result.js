// What the labels amount to, and how to go on.

import { create, createButton, formatCount, formatPercent } from "./dom.js";

export function mount(root, app) {
  const content = create("div", { class: "page" });
  root.append(content);
  let version = -1;

  async function update(state) {
    if (state.version === version) return;
    version = state.version;
    const result = await app.get("result");
    content.replaceChildren(
      create("h2", {}, "Result"),
      createFigures(state, result),
      createTable(state, result),
      createNextStep(state.command),
    );
  }

  function createFigures({ counts }, { right, tried, interval, confident }) {
    const left = counts.images - counts.labeled - counts.none - counts.skipped;
    const [low, high] = interval.map(formatPercent);
    return create(
      "dl",
      { class: "figures" },
      createFigure("Labeled", counts.labeled, `of ${formatCount(counts.images, "photo")}`),
      createFigure(
        "Estimated accuracy",
        tried ? formatPercent(right / tried) : "–",
        tried
          ? `${low} to ${high}: each of ${formatCount(tried, "label")} predicted from the others`
          : "needs two labels of a class",
      ),
      createFigure("Confident proposals", confident, `of ${formatCount(left, "open photo")}`),
    );
  }

  function createFigure(term, value, note) {
    const number = create("b", {}, value.toLocaleString("en"));
    return create("div", {}, create("dt", {}, term), create("dd", {}, number, create("span", {}, note)));
  }

  function createTable({ classes }, { proposed }) {
    const head = ["Class", "Labels", "Proposed"].map((title, i) =>
      create("th", { scope: "col", class: i ? "number" : undefined }, title),
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
      );
    });
    return create(
      "table",
      { class: "result" },
      create("thead", {}, create("tr", {}, ...head)),
      create("tbody", {}, ...rows),
    );
  }

  function createNextStep(command) {
    const copy = async () => {
      await navigator.clipboard.writeText(command);
      app.announce("Copied.", true);
    };
    // A link cannot carry the token.
    const download = async () => {
      const href = URL.createObjectURL(await app.getFile("/api/proposals.csv"));
      create("a", { href, download: "proposals.csv" }).click();
      setTimeout(() => URL.revokeObjectURL(href), 60_000);
    };
    return create(
      "section",
      { class: "go-on" },
      create("h3", {}, "Go on"),
      create("p", { class: "hint" }, "labels.csv is in the folder. Train on it in a terminal:"),
      create(
        "div",
        { class: "command" },
        create("code", {}, command),
        createButton({ class: "primary", click: copy }, "Copy"),
      ),
      create("p", { class: "hint" }, "Add --instant for a classifier without training the network."),
      createButton(
        { click: () => app.run(download), class: "download" },
        "Download the proposals for all photos (CSV)",
      ),
    );
  }

  return { update, onKey: () => false };
}
