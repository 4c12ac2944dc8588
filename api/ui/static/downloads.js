// Buttons below pictures: the picture as PNG, and the table that stands for it as CSV.
(() => {
  const save = (address, name) => Object.assign(document.createElement("a"), { href: address, download: name }).click();
  const saveText = (text, name) => {
    const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    save(address, name);
    URL.revokeObjectURL(address);
  };
  // Nothing that a spreadsheet would run as a formula.
  const cell = (text) => `"${(/^[=+@]|^-\D/.test(text) ? "'" : "") + text.trim().replaceAll(/\s+/g, " ").replaceAll('"', '""')}"`;
  const csv = (rows) => rows.map((row) => row.map((each) => cell(String(each))).join(",")).join("\r\n");
  const ofTable = (table) => csv([...table.rows].map((row) => [...row.cells].map((each) => each.textContent)));

  const put = (after, label, act) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
    button.className = "button small";
    button.dataset.save = label;
    button.addEventListener("click", act);
    after.append(button);
  };
  const named = (id, suffix) => `${location.pathname.split("/").pop()}-${id}.${suffix}`;

  for (const picture of document.querySelectorAll(".chart, #all-strategies canvas, #timeline-canvas")) {
    const row = document.createElement("p");
    row.className = "saves";
    const table = picture.closest("section")?.querySelector("details table, .scroll table");
    put(row, "PNG", async () => {
      if (picture instanceof HTMLCanvasElement) save(picture.toDataURL("image/png"), named(picture.id, "png"));
      else if (window.Plotly && picture.dataset.drawn) {
        const { width, height } = picture.getBoundingClientRect();
        save(await window.Plotly.toImage(picture, { format: "png", width, height, scale: 2 }), named(picture.id, "png"));
      }
    });
    if (picture.id === "strategies-picture") {
      put(row, "CSV", () => {
        const points = picture.points ?? [];
        const names = [...new Set(points.flatMap(Object.keys))];
        saveText(csv([names, ...points.map((point) => names.map((name) => point[name] ?? ""))]), named(picture.id, "csv"));
      });
    } else if (table) put(row, "CSV", () => saveText(ofTable(table), named(picture.id, "csv")));
    picture.after(row);
  }
})();
