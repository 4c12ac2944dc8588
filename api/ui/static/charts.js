// Draws the figures of the page and gives them the page's colours, light or dark.
"use strict";

(() => {
  const island = document.getElementById("charts");
  if (!island || typeof Plotly === "undefined") return;
  const figures = JSON.parse(island.textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, showTips: false };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const theme = () => ({
    "font.color": colour("--ink-quiet"),
    "hoverlabel.bgcolor": colour("--surface"),
    "hoverlabel.bordercolor": colour("--line"),
    "hoverlabel.font.color": colour("--ink"),
  });

  for (const [id, figure] of Object.entries(figures)) {
    const element = document.getElementById(id);
    if (!element) continue;
    element.hidden = false;
    Plotly.newPlot(element, figure.data, figure.layout, config).then(() => {
      Plotly.relayout(element, theme());
      element.dataset.drawn = "true";
    });
    dark.addEventListener("change", () => Plotly.relayout(element, theme()));
  }
})();
