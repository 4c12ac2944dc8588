// All strategies of a search on a canvas: read when the picture comes into view, moved and zoomed without a library.
(() => {
  const box = document.getElementById("all-strategies");
  if (!box) return;
  const canvas = document.getElementById("strategies-picture");
  const said = document.getElementById("strategies-said");
  const slider = document.getElementById("strategies-step");
  const chosenText = document.getElementById("strategies-chosen");
  const openLink = document.getElementById("strategies-open");
  const whyButton = document.getElementById("strategies-why");
  const asked = box.querySelector('input[name="strategy"]');
  const legend = document.getElementById("strategies-legend");
  const roles = Object.fromEntries([...box.querySelectorAll("[data-role]")].map((each) => [each.dataset.role, each]));
  const filters = [...box.querySelectorAll("[data-filter]")];
  const EDGE = { left: 58, right: 14, top: 12, bottom: 44 };
  const NEAR_PX = 14;
  const bounds = document.getElementById("strategies-bounds");
  const BOUND = [140, 148, 158]; // grey: nobody launches a bound
  const RAMP = ["#1d3f7a", "#3f8fd0", "#4a978c", "#84b676", "#d9a83a", "#dd7a3c", "#c4574d"];
  const BEST_IS_HIGH = new Set(["mfu_pct"]);
  let data = null;
  let shown = [];
  let view = null; // x0, x1, y0, y1 in the units of the axes
  let chosen = null;
  let waiting = false;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  const axis = (role) => roles[role].value;
  let size = { width: 1, height: 1 }; // inside the axes; asking the page anew for every point would take longest of all
  const inner = () => size;
  const measure = () => (size = { width: canvas.clientWidth - EDGE.left - EDGE.right, height: canvas.clientHeight - EDGE.top - EDGE.bottom });
  const atX = (value) => EDGE.left + ((value - view.x0) / (view.x1 - view.x0)) * size.width;
  const atY = (value) => EDGE.top + (1 - (value - view.y0) / (view.y1 - view.y0)) * size.height;

  const range = (name) => {
    const values = shown.map((point) => point[name]);
    const low = Math.min(...values);
    const high = Math.max(...values);
    const margin = 0.05 * (high - low) || 0.05 * high || 1;
    return [low - margin, high + margin];
  };
  const whole = () => {
    if (!shown.length) return;
    [[view.x0, view.x1], [view.y0, view.y1]] = [range(axis("x")), range(axis("y"))];
  };
  // Where it is decided: without the strategies that are proven to be worse than all that were solved.
  const focus = () => {
    whole();
    const solved = shown.filter(isSolved);
    if (!solved.length) return;
    for (const side of ["x", "y"]) {
      const values = solved.map((point) => point[axis(side)]);
      const [from, to] = [`${side}0`, `${side}1`];
      if (axis(side) === "step_time_s") view[to] = Math.min(view[to], Math.max(...values) + 0.08 * (Math.max(...values) - view[from]));
      if (axis(side) === "mfu_pct") view[from] = Math.max(view[from], Math.min(...values) - 0.08 * (view[to] - Math.min(...values)));
    }
  };

  const coloursOf = () => {
    const coloured = data.points.filter(isSolved);
    const values = [...new Set(coloured.map((point) => point[axis("colour")]))].sort((a, b) => a - b);
    if (values.length <= RAMP.length) {
      const of = new Map(values.map((value, i) => [value, RAMP[values.length > 1 ? Math.round((i * (RAMP.length - 1)) / (values.length - 1)) : 0]]));
      return { of: (point) => of.get(point[axis("colour")]), entries: [...of] };
    }
    const edges = RAMP.map((_, i) => values[Math.floor((i * values.length) / RAMP.length)]);
    const place = (value) => edges.findLastIndex((edge) => value >= edge);
    return { of: (point) => RAMP[Math.max(0, place(point[axis("colour")]))], entries: edges.map((edge, i) => [edge, RAMP[i]]) };
  };

  // Solved strategies are filled: ranked plans, and others that no solved one beats. The rest are at their bounds.
  const isSolved = (point) => Boolean(point.plan || point.solved);
  // The solved ones that no other beats in what the two axes show.
  const frontOf = () => {
    const [x, y] = [axis("x"), axis("y")];
    const signed = (name, point) => (BEST_IS_HIGH.has(name) ? -point[name] : point[name]);
    const plans = shown.filter(isSolved).sort((a, b) => signed(x, a) - signed(x, b) || signed(y, a) - signed(y, b));
    const found = [];
    for (const plan of plans) if (!found.length || signed(y, plan) < signed(y, found.at(-1))) found.push(plan);
    return found;
  };

  let colours = null; // of the points that are shown, and the plans that none beats: the same in every frame
  let front = [];
  let plans = [];
  let others = [[], []]; // xs, ys of the hollow points
  const prepare = () => {
    [colours, front] = [coloursOf(), frontOf()];
    plans = shown.filter(isSolved);
    const hollow = shown.filter((point) => !isSolved(point));
    others = ["x", "y"].map((role) => Float64Array.from(hollow, (point) => point[axis(role)]));
  };

  // Hollow points are written as pixels: thousands of arcs, or of copied pictures, take a canvas a tenth of a second.
  const RING_PX = 10;
  const rings = new Map();
  const ring = (scale) => {
    if (!rings.has(scale)) {
      const side = Math.ceil(RING_PX * scale);
      const tile = document.createElement("canvas");
      tile.width = tile.height = side;
      const brush = tile.getContext("2d", { willReadFrequently: true });
      brush.scale(scale, scale);
      brush.arc(RING_PX / 2, RING_PX / 2, 3, 0, 2 * Math.PI);
      brush.stroke();
      const { data: bytes } = brush.getImageData(0, 0, side, side);
      const inked = [];
      for (let i = 0; i < side * side; i++) {
        const alpha = bytes[4 * i + 3];
        if (alpha > 15) inked.push([i % side, Math.floor(i / side), alpha]);
      }
      rings.set(scale, { side, inked });
    }
    return rings.get(scale);
  };
  const layer = document.createElement("canvas");
  let pixels = null;
  const drawOthers = (pen, scale) => {
    const [wide, high] = [Math.round(size.width * scale), Math.round(size.height * scale)];
    if (wide < 1 || high < 1) return;
    if (pixels?.width !== wide || pixels.height !== high) {
      [layer.width, layer.height] = [wide, high];
      pixels = new ImageData(wide, high);
    }
    const { data: bytes } = pixels;
    bytes.fill(0);
    const { side, inked } = ring(scale);
    const [perX, perY] = [wide / (view.x1 - view.x0), high / (view.y1 - view.y0)];
    const [xs, ys] = others;
    for (let i = 0; i < xs.length; i++) {
      const left = Math.round((xs[i] - view.x0) * perX - side / 2);
      const top = Math.round(high - (ys[i] - view.y0) * perY - side / 2);
      if (left <= -side || top <= -side || left >= wide || top >= high) continue;
      for (const [dx, dy, alpha] of inked) {
        const [x, y] = [left + dx, top + dy];
        if (x < 0 || y < 0 || x >= wide || y >= high) continue;
        const at = 4 * (y * wide + x);
        if (bytes[at + 3] <= alpha) bytes.set([...BOUND, alpha], at);
      }
    }
    layer.getContext("2d", { willReadFrequently: true }).putImageData(pixels, 0, 0);
    pen.drawImage(layer, EDGE.left, EDGE.top, size.width, size.height);
  };

  const draw = () => {
    waiting = false;
    measure();
    const scale = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    const [ink, quiet, line, surface] = ["--ink", "--ink-quiet", "--line", "--surface"].map(css);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px Inter, 'Segoe UI', system-ui, sans-serif";
    pen.lineWidth = 1;
    pen.strokeStyle = line;
    pen.fillStyle = quiet;
    const bottom = height - EDGE.bottom;
    pen.textAlign = "center";
    for (const value of axisTicks(view.x0, view.x1, width < 500 ? 4 : 8).values) {
      pen.beginPath();
      pen.moveTo(atX(value), EDGE.top);
      pen.lineTo(atX(value), bottom);
      pen.stroke();
      pen.fillText(number(value), atX(value), bottom + 16);
    }
    pen.fillText(data.words[axis("x")], EDGE.left + inner().width / 2, height - 8);
    pen.textAlign = "right";
    for (const value of axisTicks(view.y0, view.y1, 6).values) {
      pen.beginPath();
      pen.moveTo(EDGE.left, atY(value));
      pen.lineTo(width - EDGE.right, atY(value));
      pen.stroke();
      pen.fillText(number(value), EDGE.left - 6, atY(value) + 4);
    }
    pen.save();
    pen.translate(13, EDGE.top + inner().height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(data.words[axis("y")], 0, 0);
    pen.restore();
    pen.save();
    pen.beginPath();
    pen.rect(EDGE.left, EDGE.top, inner().width, inner().height);
    pen.clip();
    if (data.valley_s) {
      const [low, high] = data.valley_s;
      pen.fillStyle = "rgba(74, 151, 140, 0.2)";
      if (axis("y") === "step_time_s") pen.fillRect(EDGE.left, atY(high), inner().width, Math.max(2, atY(low) - atY(high)));
      if (axis("x") === "step_time_s") pen.fillRect(atX(low), EDGE.top, Math.max(2, atX(high) - atX(low)), inner().height);
    }
    const { of } = colours;
    drawOthers(pen, scale);
    pen.beginPath();
    for (const plan of front) pen.lineTo(atX(plan[axis("x")]), atY(plan[axis("y")]));
    pen.strokeStyle = quiet;
    pen.lineWidth = 1.5;
    pen.stroke();
    for (const point of plans) {
      pen.beginPath();
      pen.arc(atX(point[axis("x")]), atY(point[axis("y")]), point.plan ? 7 : 4.5, 0, 2 * Math.PI);
      pen.fillStyle = of(point);
      pen.fill();
      pen.lineWidth = point.plan ? 1.5 : 1;
      pen.strokeStyle = point.plan ? ink : surface;
      pen.stroke();
    }
    if (chosen) {
      pen.beginPath();
      pen.arc(atX(chosen[axis("x")]), atY(chosen[axis("y")]), 11, 0, 2 * Math.PI);
      pen.strokeStyle = ink;
      pen.lineWidth = 2.5;
      pen.stroke();
    }
    pen.restore();
    canvas.points = shown;
    box.dataset.drawn = shown.length;
  };
  const redraw = () => {
    if (waiting || !data) return;
    waiting = true;
    requestAnimationFrame(draw);
  };

  const choose = (point) => {
    chosen = point;
    openLink.hidden = !point?.plan;
    whyButton.hidden = !point || Boolean(point.plan);
    if (!point) {
      chosenText.textContent = "";
    } else {
      const { words } = data;
      const [least, most] = isSolved(point) ? ["", ""] : ["≥ ", "≤ "];
      const { colon } = document.body.dataset;
      const title = point.plan ? `${words.plan} ${point.rank}${colon}` : "";
      chosenText.textContent =
        `${title}${point.name} · ${least}${number(point.step_time_s)} s · ${least}${number(point.peak_memory_gib)} GiB · ` +
        `MFU ${most}${number(point.mfu_pct)} % · ${words.num_npus}${colon}${number(point.num_npus)}`;
      slider.value = shown.indexOf(point);
      slider.setAttribute("aria-valuetext", chosenText.textContent);
      if (point.plan) openLink.href = box.dataset.plans + point.plan + window.location.search;
      else asked.value = point.ask;
    }
    redraw();
  };

  const refresh = () => {
    const y = axis("y");
    shown = data.points.filter((point) => (bounds.checked || isSolved(point)) && filters.every((f) => !f.value || String(point[f.dataset.filter]) === f.value));
    shown.sort((a, b) => a[y] - b[y] || a[axis("x")] - b[axis("x")]);
    slider.max = Math.max(0, shown.length - 1);
    said.textContent = data.words.shown.replace("{shown}", shown.length.toLocaleString("en")).replace("{total}", data.total.toLocaleString("en"));
    focus();
    prepare();
    const bits = colours.entries.map(([value, colour]) => ["swatch", colour, `${data.words[axis("colour")]} ${number(value)}`]);
    if (bounds.checked) bits.push(["swatch", `rgb(${BOUND})`, data.words.bounds]);
    if (front.length > 1) bits.push(["swatch line", "currentColor", data.words.pareto]);
    if (data.valley_s && [axis("x"), y].includes("step_time_s")) bits.push(["swatch", "rgba(74, 151, 140, 0.35)", data.words.valley]);
    legend.replaceChildren(
      ...bits.map(([kind, colour, text]) => {
        const item = document.createElement("li");
        const swatch = document.createElement("span");
        swatch.className = kind;
        swatch.style.backgroundColor = colour;
        item.append(swatch, text);
        return item;
      }),
    );
    choose(shown.includes(chosen) ? chosen : null);
  };

  const nearest = (event) => {
    let [best, bestPx] = [null, NEAR_PX];
    for (const point of shown) {
      const px = Math.hypot(atX(point[axis("x")]) - event.offsetX, atY(point[axis("y")]) - event.offsetY) - (point.plan ? 4 : point.solved ? 2 : 0);
      if (px < bestPx) [best, bestPx] = [point, px];
    }
    return best;
  };

  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (!data) return;
    canvas.setPointerCapture(event.pointerId);
    held = { x: event.offsetX, y: event.offsetY, view: { ...view }, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [right, down] = [event.offsetX - held.x, event.offsetY - held.y];
    held.moved ||= Math.hypot(right, down) > 4;
    if (!held.moved) return;
    const dx = (right / inner().width) * (held.view.x1 - held.view.x0);
    const dy = (down / inner().height) * (held.view.y1 - held.view.y0);
    view = { x0: held.view.x0 - dx, x1: held.view.x1 - dx, y0: held.view.y0 + dy, y1: held.view.y1 + dy };
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.moved) {
      const point = nearest(event);
      if (point?.plan && point === chosen) openLink.click();
      else choose(point);
    }
    held = null;
  });
  canvas.addEventListener("pointercancel", () => (held = null));
  canvas.addEventListener("dblclick", () => {
    whole();
    redraw();
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!data) return;
      event.preventDefault();
      const factor = 1.0015 ** event.deltaY;
      const x = view.x0 + ((event.offsetX - EDGE.left) / inner().width) * (view.x1 - view.x0);
      const y = view.y0 + (1 - (event.offsetY - EDGE.top) / inner().height) * (view.y1 - view.y0);
      view = {
        x0: x + (view.x0 - x) * factor,
        x1: x + (view.x1 - x) * factor,
        y0: y + (view.y0 - y) * factor,
        y1: y + (view.y1 - y) * factor,
      };
      redraw();
    },
    { passive: false },
  );
  slider.addEventListener("input", () => choose(shown[Number(slider.value)]));
  for (const each of [...Object.values(roles), ...filters, bounds]) each.addEventListener("change", () => data && refresh());
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(canvas);

  const read = async () => {
    const response = await fetch(box.dataset.from, { headers: { Accept: "application/json" } });
    const body = await response.json();
    if (!response.ok) throw new Error(body.error);
    data = body;
    view = { x0: 0, x1: 1, y0: 0, y1: 1 };
    for (const filter of filters) {
      const values = [...new Set(data.points.map((point) => point[filter.dataset.filter]))].sort((a, b) => a - b);
      filter.append(...values.map((value) => new Option(value, value)));
      filter.closest("label").hidden = values.length < 2;
    }
    bounds.checked = !data.points.some(isSolved);
    refresh();
  };
  box.hidden = false;
  const seen = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      read().catch((error) => (said.textContent = error.message));
    },
    { rootMargin: "200px" },
  );
  seen.observe(box);
})();
