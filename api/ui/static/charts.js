// Draws each figure when it comes near the view, in the page's colours, with a legend that can be reached by keyboard.
(() => {
  const island = document.getElementById("charts");
  if (!island) return;
  const figures = JSON.parse(island.textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const config = { displayModeBar: false, responsive: true, showTips: false };
  const LEGEND_PX = 40;
  const drawn = new Map(); // element -> promise of its picture

  // The library is by far the largest file: it is fetched when the first figure needs it.
  let library = null;
  const plotly = () =>
    (library ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = island.dataset.plotly;
      script.addEventListener("load", () => resolve(window.Plotly));
      script.addEventListener("error", () => {
        library = null;
        script.remove();
        reject(new Error(script.src));
      });
      document.head.append(script);
    }));

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const theme = () => ({
    "font.color": colour("--ink-quiet"),
    "hoverlabel.bgcolor": colour("--surface"),
    "hoverlabel.bordercolor": colour("--line"),
    "hoverlabel.font.color": colour("--ink"),
  });

  // The layout with changes in the words of `relayout`, such as "font.color"; to draw first and change then takes twice
  // as long.
  const changed = (layout, changes) => {
    const copy = structuredClone(layout);
    for (const [path, value] of Object.entries(changes)) {
      const parents = path.split(".");
      const name = parents.pop();
      parents.reduce((place, step) => (place[step] ??= {}), copy)[name] = value;
    }
    return copy;
  };

  const colourOf = (trace) => {
    const own = trace.mode === "lines" ? trace.line.color : trace.marker.color;
    return Array.isArray(own) ? own[0] : own;
  };

  const paint = async (element, figure) => {
    const Plotly = window.Plotly ?? (await plotly());
    const look = { ...theme(), ...(narrow.matches ? figure.layout.meta?.narrow : {}) };
    await Plotly.newPlot(element, figure.data, changed(figure.layout, look), config);
    element.style.minHeight = "";
    element.dataset.drawn = "true";
    dark.addEventListener("change", () => Plotly.relayout(element, theme()));
    return Plotly;
  };

  // The picture of an element, drawn once; one whose library did not come is tried again when it is next asked for.
  const draw = (element) => {
    if (!drawn.has(element)) {
      const picture = paint(element, figures[element.id]);
      drawn.set(element, picture);
      picture.catch(() => drawn.delete(element));
    }
    return drawn.get(element);
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
      button.addEventListener("click", async () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        (await draw(element)).restyle(element, { visible: shown }, [index]);
      });
      list.append(document.createElement("li"));
      list.lastChild.append(button);
    }
    element.before(list);
  };

  const near = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting) draw(target).then(() => near.unobserve(target), () => {});
      }
    },
    { rootMargin: "300px" },
  );
  const elements = Object.keys(figures).map((id) => document.getElementById(id)).filter(Boolean);
  for (const element of elements) {
    element.hidden = false;
    legend(element, figures[element.id]);
    // Its place is kept, so that nothing moves when it is drawn.
    element.style.minHeight = `${figures[element.id].layout.height}px`;
    near.observe(element);
  }

  // On paper bars of the page stand for pictures, and tables for what bars can't say.
  const tables = [...document.querySelectorAll("details.open")];
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = tables.filter((table) => !table.open);
    for (const table of opened) table.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const table of opened) table.open = false;
  });
})();
