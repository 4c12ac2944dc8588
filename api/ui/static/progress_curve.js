// Draws the best step and the proven bound of a running search over time, and lists what rules have excluded.
(() => {
  const section = document.getElementById("progress");
  const figure = document.getElementById("progress-curve");
  if (!section || !figure) return;
  const canvas = figure.querySelector(".canvas");
  const rules = document.getElementById("progress-rules");
  const meanings = JSON.parse(document.getElementById("rule-texts").textContent);
  const numbers = new Intl.NumberFormat("en");
  const HEIGHT = 200;
  const EDGE = { left: 64, right: 16, top: 12, bottom: 26 };
  const TICKS = 4;
  // A series holds only the points at which it changes: [elapsed_s, step_s].
  const series = { incumbent_s: [], bound_s: [] };
  let elapsed_s = 0;
  let waiting = false;

  const svg = (name, attributes, content) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (content !== undefined) element.textContent = content;
    return element;
  };

  const ticksOf = (low, high) => {
    const { values, digits } = axisTicks(low, high, TICKS);
    return values.map((value) => [value, `${value.toFixed(digits)} s`]);
  };

  const last = (points) => (points.length ? points[points.length - 1][1] : null);

  const draw = () => {
    waiting = false;
    const values = [...series.incumbent_s, ...series.bound_s].map((point) => point[1]);
    if (!values.length) return;
    figure.hidden = false;
    const width = Math.max(240, canvas.clientWidth);
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const margin = 0.06 * (most - least || most || 1);
    const [low, high] = [Math.max(0, least - margin), most + margin];
    const end_s = Math.max(elapsed_s, 1e-3);
    const x = (time) => EDGE.left + (time / end_s) * (width - EDGE.left - EDGE.right);
    const y = (value) => EDGE.top + ((high - value) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, "aria-hidden": "true" });
    for (const [value, label] of ticksOf(low, high)) {
      picture.append(svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }));
      picture.append(svg("text", { x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" }, label));
    }
    for (const [value, label] of ticksOf(0, end_s)) {
      picture.append(svg("text", { x: x(value), y: HEIGHT - 6, "text-anchor": "middle" }, label));
    }
    for (const [name, key] of [["bound", "bound_s"], ["best", "incumbent_s"]]) {
      const points = series[key];
      if (!points.length) continue;
      const path = points.map(([time, value], i) => (i ? `H${x(time)}V${y(value)}` : `M${x(time)} ${y(value)}`));
      picture.append(svg("path", { class: name, d: `${path.join("")}H${x(end_s)}` }));
    }
    canvas.replaceChildren(picture);
  };

  const listRules = (counts, enumerated) => {
    const entries = Object.entries(counts).sort((a, b) => b[1] - a[1]);
    if (!entries.length) return;
    const rows = entries.map(([name, count]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.append(Object.assign(document.createElement("code"), { textContent: name }));
      row.append(head);
      const share = enumerated ? `${((100 * count) / enumerated).toFixed(1)} %` : "–";
      for (const [content, kind] of [[numbers.format(count), "n"], [share, "n"], [meanings[name] ?? "", "quiet wrap"]]) {
        row.append(Object.assign(document.createElement("td"), { textContent: content, className: kind }));
      }
      return row;
    });
    rules.querySelector("tbody").replaceChildren(...rows);
    rules.hidden = false;
  };

  const later = () => {
    if (waiting) return;
    waiting = true;
    window.requestAnimationFrame(draw);
  };

  section.addEventListener("progress-report", ({ detail: report }) => {
    if (typeof report.elapsed_s === "number") elapsed_s = Math.max(elapsed_s, report.elapsed_s);
    for (const [key, points] of Object.entries(series)) {
      if (typeof report[key] === "number" && report[key] !== last(points)) points.push([elapsed_s, report[key]]);
    }
    if (report.rejected_by_rule) listRules(report.rejected_by_rule, report.enumerated);
    later();
  });
  window.addEventListener("resize", later);
})();
