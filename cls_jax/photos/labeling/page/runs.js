// The runs that were trained on this folder: report, use, export and delete.

import { create, createButton, openReport } from "./dom.js";
import { formatCount } from "./words.js";

export function createRuns(app) {
  const list = create("ul", { class: "runs" });
  const element = create(
    "section",
    { class: "go-on", "aria-label": "Runs of this folder", hidden: true },
    create("h3", {}, "Runs of this folder"),
    create("p", { class: "hint" }, "In a terminal, cls-jax predict takes the one in use: the newest, or a better one before it. Its networks name the photos here, too, if they are the better classifier."),
    list,
  );
  let described = "";

  async function update() {
    const { runs } = await app.get("runs");
    if (!element.isConnected || JSON.stringify(runs) === described) return;
    described = JSON.stringify(runs);
    const { id } = document.activeElement;
    element.hidden = !runs.length;
    list.replaceChildren(...runs.map(createRow));
    if (list.querySelector(`#${CSS.escape(id || "none")}`)) document.getElementById(id).focus();
  }

  function createRow(run, i) {
    const { name, method, labels, accuracy, changed, megabytes } = run;
    const when = new Date(1000 * changed).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
    const parts = [method, labels === null ? "" : formatCount(labels, "label"), accuracy, when, `${megabytes} MB`];
    const act = (verb, text) => async () => {
      await app.run(async () => {
        await app.post(verb, { name });
        app.announce(text, true);
      });
      await update().catch(app.report);
    };
    const button = (kind, text, click, properties = {}) =>
      createButton({ click, id: `${kind}-${i}`, "aria-label": `${text}: ${name}`, ...properties }, text);
    let isSure = false;
    const remove = button("delete", "Delete", () => {
      if (isSure) return act("delete", `${name} deleted.`)();
      isSure = true;
      remove.textContent = "Delete for good?";
      remove.setAttribute("aria-label", `Delete for good: ${name}`);
    });
    const exporting = button("export", "Export", () => exportRun(name, exporting));
    return create(
      "li",
      { class: run.is_used ? "used" : undefined },
      create("b", { class: "name" }, name),
      create("span", { class: "share" }, parts.filter(Boolean).join(" · ")),
      create(
        "div",
        { class: "actions" },
        run.is_used ? create("span", { class: "in-use" }, "In use") : button("use", "Use", act("use", `${name} is used now.`)),
        run.has_report ? button("report", "Report", () => app.run(() => openReport(app, { name }))) : "",
        exporting,
        remove,
      ),
    );
  }

  /** Writes the classifier as ONNX and for JAX, which takes up to a minute: labeling goes on. */
  async function exportRun(name, button) {
    button.disabled = true;
    button.textContent = "Exporting…";
    try {
      const { exported } = await app.post("export", { name });
      app.announce(exported, true);
    } catch (error) {
      app.report(error);
    }
    button.disabled = false;
    button.textContent = "Export";
  }

  return { element, update };
}
