// Sorts the rows of a table by a column when its title is pressed; without scripts the rows stay as they came.
"use strict";

(() => {
  const value = (row, column) => {
    const text = row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const number = Number(text);
    return text !== "" && Number.isFinite(number) ? number : text;
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
    return typeof a === "number" ? -1 : 1; // what has no number comes last
  };
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const titles = [...table.tHead.rows[0].cells];
    titles.forEach((title, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...title.childNodes);
      title.append(button);
      button.addEventListener("click", () => {
        const up = title.getAttribute("aria-sort") !== "ascending";
        for (const other of titles) other.removeAttribute("aria-sort");
        title.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column)));
        table.tBodies[0].append(...rows);
      });
    });
  }
})();
