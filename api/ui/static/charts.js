// Draws the figures of the page in the page's colours, light or dark, with legends that can be reached by keyboard.
"use strict";

(() => {
  const island = document.getElementById("charts");
  if (!island || typeof Plotly === "undefined") return;
  const figures = JSON.parse(island.textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const config = { displayModeBar: false, responsive: true, showTips: false };
  const LEGEND_PX = 40;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const theme = () => ({
    "font.color": colour("--ink-quiet"),
    "hoverlabel.bgcolor": colour("--surface"),
    "hoverlabel.bordercolor": colour("--line"),
    "hoverlabel.font.color": colour("--ink"),
  });

  const colourOf = (trace) => {
    const own = trace.mode === "lines" ? trace.line.color : trace.marker.color;
    return Array.isArray(own) ? own[0] : own;
  };

  // A trace a button; pressing one hides or shows its trace.
  const legend = (element, figure) => {
    const named = figure.data.map((trace, index) => ({ trace, index })).filter(({ trace }) => trace.name);
    const wanted = figure.layout.showlegend ?? named.length > 1;
    figure.layout.showlegend = false;
    if (!wanted || !named.length) return;
    figure.layout.height -= LEGEND_PX;
    const list = document.createElement("ul");
    list.className = "legend";
    for (const { trace, index } of named) {
      const button = document.createElement("button");
      const swatch = document.createElement("span");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      swatch.className = trace.mode === "lines" ? "swatch line" : "swatch";
      swatch.style.backgroundColor = colourOf(trace);
      button.append(swatch, trace.name);
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        Plotly.restyle(element, { visible: shown }, [index]);
      });
      list.append(document.createElement("li"));
      list.lastChild.append(button);
    }
    element.before(list);
  };

  for (const [id, figure] of Object.entries(figures)) {
    const element = document.getElementById(id);
    if (!element) continue;
    element.hidden = false;
    legend(element, figure);
    Plotly.newPlot(element, figure.data, figure.layout, config).then(() => {
      Plotly.relayout(element, { ...theme(), ...(narrow.matches ? figure.layout.meta?.narrow : {}) });
      element.dataset.drawn = "true";
    });
    dark.addEventListener("change", () => Plotly.relayout(element, theme()));
  }

  // Buttons that look at a part of a figure, such as the start of a step.
  for (const button of document.querySelectorAll("[data-look]")) {
    button.hidden = false;
    button.addEventListener("click", () =>
      Plotly.relayout(button.dataset.look, { "xaxis.range": [Number(button.dataset.from), Number(button.dataset.to)] }),
    );
  }
})();
