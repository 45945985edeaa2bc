// The runs that were trained on this folder: report, use and delete.

import { get } from "./api.js";
import { build, openReport } from "./dom.js";
import { formatCount } from "./words.js";

export function createRuns(app) {
  const { element, list } = build("runs");
  let described = "";

  async function update() {
    const { runs } = await get("runs");
    if (!element.isConnected || JSON.stringify(runs) === described) return;
    described = JSON.stringify(runs);
    const { id } = document.activeElement;
    element.hidden = !runs.length;
    list.replaceChildren(...runs.map(createRow));
    document.getElementById(id)?.focus();
  }

  function createRow(run, i) {
    const { name, method, labels, accuracy, changed, megabytes } = run;
    const when = new Date(1000 * changed).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
    const facts = [method, labels === null ? "" : formatCount(labels, "label"), accuracy, when, `${megabytes} MB`];
    const act = (verb, text) => async () => {
      await app.run(async () => {
        await app.post(verb, { name });
        app.announce(text);
      });
      await update().catch(app.report);
    };
    let isSure = false;
    const parts = build("run", {
      use: act("use", `${name} is used now.`),
      report: () => app.run(() => openReport(app, { name })),
      delete: () => {
        if (isSure) return act("delete", `${name} deleted.`)();
        isSure = true;
        parts.delete.textContent = "Delete for good?";
        parts.delete.ariaLabel = `Delete for good: ${name}`;
      },
    });
    for (const kind of ["use", "report", "delete"]) {
      parts[kind].id = `${kind}-${i}`;
      parts[kind].ariaLabel = `${parts[kind].textContent}: ${name}`;
    }
    parts.element.classList.toggle("used", run.is_used);
    parts.name.textContent = name;
    parts.facts.textContent = facts.filter(Boolean).join(" · ");
    parts.use.hidden = run.is_used;
    parts.used.hidden = !run.is_used;
    parts.report.hidden = !run.has_report;
    return parts.element;
  }

  return { element, update };
}
