// All photos by class: as a table, and as copies in folders.

import { create, createButton, formatCount, save } from "./dom.js";

export function createSorting(app) {
  const download = async () => save(await app.getFile("/api/proposals.csv"), "proposals.csv");

  async function copy() {
    const { copies, folder } = await app.post("copies");
    app.announce(`${formatCount(copies, "photo")} copied into ${folder}.`, true);
  }

  const element = create(
    "section",
    { class: "go-on", "aria-label": "Sorted photos" },
    create("h3", {}, "Sorted photos"),
    create(
      "div",
      { class: "actions" },
      createButton({ click: () => app.showPhotos(null) }, "See the photos"),
      createButton({ click: () => app.run(copy), id: "copies" }, "Copy into class folders"),
      createButton({ click: () => app.run(download), class: "download" }, "Download the table (CSV)"),
    ),
  );
  return { element };
}
