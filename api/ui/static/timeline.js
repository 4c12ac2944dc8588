// The simulated pipeline of a plan on a canvas: read when it comes into view, zoomed by wheel and drag, with many
// stages scrolled inside it. What a box says can be read by keyboard too, slot by slot.
(() => {
  const box = document.getElementById("timeline-box");
  if (!box) return;
  const part = (name) => document.getElementById(`timeline-${name}`);
  const [frame, canvas, position, stageInput, slotInput] = ["frame", "canvas", "position", "stage", "slot"].map(part);
  const [lanesBox, chosenText, hovered, legend] = ["lanes", "chosen", "hovered", "legend"].map(part);
  const tall = canvas.parentElement;
  const EDGE = { left: 46, right: 8, top: 26 };
  const MOST_PX = 480;
  const LEAST_PX = 3; // of a slot that is drawn by itself
  const COLUMN_PX = 4;
  const LANES = ["compute", "communication", "host"];
  const LANE_PX = 8;
  const [START, LENGTH, F, FC, B, BC, LANE] = [0, 1, 2, 3, 4, 5, 6];
  const LEAST_TICKS = 20;
  const STEPS = 1000;
  let data = null;
  let view = null; // first and last instant that are shown, in ticks
  let chosen = null; // stage and number of the slot
  let selected = null; // from and to of a span that is being dragged, in pixels
  let waiting = false;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seconds = (ticks) => {
    const s = ticks / data.ticks_per_s;
    return s < 1 ? `${Number((1000 * s).toPrecision(3))} ms` : `${s.toFixed(3)} s`;
  };
  let widthPx = 0; // of the canvas; asking the page anew for every box would take longest of all
  const width = () => widthPx - EDGE.left - EDGE.right;
  const at = (instant) => EDGE.left + ((instant - view[0]) / (view[1] - view[0])) * width();
  const instantAt = (x) => view[0] + ((x - EDGE.left) / width()) * (view[1] - view[0]);
  const slotPx = () => (lanesBox.checked ? 20 : Math.max(16, Math.min(34, Math.floor(300 / data.slots.length))));
  const rowPx = () => slotPx() + (lanesBox.checked ? 3 * LANE_PX + 6 : 3);
  const rowAt = (y) => Math.floor((y - EDGE.top + frame.scrollTop) / rowPx());

  const kind = (slot) => (slot[F] < 0 ? "backward" : slot[B] < 0 ? "forward" : "pair");
  const pass = (letter, batch, chunk) => (batch < 0 ? [] : [`${letter}${batch}${data.vpp > 1 ? `.${chunk}` : ""}`]);
  const fullName = (slot) => [...pass("F", slot[F], slot[FC]), ...pass("B", slot[B], slot[BC])].join(" ");
  const shortName = (slot) => [slot[F], slot[B]].filter((batch) => batch >= 0).join("|");
  const endOf = (slot) => slot[START] + slot[LENGTH];
  // The first slot that ends after an instant.
  const firstAfter = (slots, instant) => {
    let [low, high] = [0, slots.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (endOf(slots[middle]) <= instant) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  // Of a very long step the middle is not there.
  const isRest = (slots, number) => data.left_out > 0 && number === slots.length / 2;
  const idleBefore = (slots, number) => {
    if (isRest(slots, number)) return 0;
    const end = number < slots.length ? slots[number][START] : data.makespan;
    return end - (number ? endOf(slots[number - 1]) : 0);
  };

  // Of a stage whose middle is left out: what its slots before that do with their time.
  const ALIKE = 256;
  const steady = new Map();
  const steadyOf = (stage) => {
    if (!steady.has(stage)) {
      const slots = data.slots[stage].slice(0, data.slots[stage].length / 2).slice(-ALIKE);
      const span = endOf(slots.at(-1)) - slots[0][START];
      const part = (ticks) => slots.reduce((sum, slot) => sum + ticks(slot), 0) / span;
      steady.set(stage, {
        kinds: ["forward", "pair", "backward"].map((name) => [name, part((slot) => (kind(slot) === name ? slot[LENGTH] : 0))]),
        lanes: LANES.map((_, i) => part((slot) => data.lanes[stage][slot[LANE]][i])),
      });
    }
    return steady.get(stage);
  };

  let inks = null; // the page's colours, and the pattern of a bubble
  const hatch = (pen) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.strokeStyle = data.colours.bubble;
    brush.beginPath();
    for (const shift of [-6, 0, 6]) {
      brush.moveTo(shift, 6);
      brush.lineTo(shift + 6, 0);
    }
    brush.stroke();
    return pen.createPattern(tile, "repeat");
  };

  // What boxes say, each text drawn once and then copied: writing hundreds anew takes longer than a frame has.
  const FONT = "11px Inter, 'Segoe UI', system-ui, sans-serif";
  const MOST_LABELS = 3000;
  const LABEL_PX = 16; // its height, with the base line BASE_PX below the top
  const BASE_PX = 12;
  const labels = new Map();
  const measurer = document.createElement("canvas").getContext("2d");
  measurer.font = FONT;
  const widths = new Map();
  const widthOf = (text) => {
    if (!widths.has(text)) {
      if (widths.size > MOST_LABELS) widths.clear();
      widths.set(text, measurer.measureText(text).width);
    }
    return widths.get(text);
  };
  const label = (text, ink) => {
    const scale = window.devicePixelRatio || 1;
    const key = `${scale} ${ink} ${text}`;
    if (!labels.has(key)) {
      if (labels.size > MOST_LABELS) labels.clear();
      const tile = document.createElement("canvas");
      const wide = Math.ceil(widthOf(text)) + 2;
      [tile.width, tile.height] = [Math.ceil(wide * scale), Math.ceil(LABEL_PX * scale)];
      const brush = tile.getContext("2d");
      brush.scale(scale, scale);
      brush.font = FONT;
      brush.fillStyle = ink;
      brush.fillText(text, 1, BASE_PX);
      labels.set(key, { tile, wide: tile.width / scale, high: tile.height / scale });
    }
    return labels.get(key);
  };
  // A text around x on a base line, on whole pixels of the screen, so that it stays sharp.
  const write = (pen, text, ink, x, base) => {
    const scale = window.devicePixelRatio || 1;
    const { tile, wide, high } = label(text, ink);
    const [left, top] = [x - wide / 2, base - BASE_PX].map((px) => Math.round(px * scale) / scale);
    pen.drawImage(tile, left, top, wide, high);
  };

  // Slots too narrow to tell apart: each column is filled by the shares of its time, the rest of it is bubble.
  const drawShares = (pen, stage, first, top) => {
    const slots = data.slots[stage];
    const columns = Math.ceil(width() / COLUMN_PX);
    const ticks = ((view[1] - view[0]) / width()) * COLUMN_PX;
    const shares = Object.fromEntries(["forward", "pair", "backward", "after"].map((name) => [name, new Float64Array(columns)]));
    const paler = Object.fromEntries(["forward", "pair", "backward"].map((name) => [name, new Float64Array(columns)]));
    const lanes = lanesBox.checked ? LANES.map(() => new Float64Array(columns)) : [];
    const add = (share, from, to, part = 1) => {
      const left = Math.max(0, (from - view[0]) / ticks);
      const right = Math.min(columns, (to - view[0]) / ticks);
      for (let column = Math.floor(left); column < right; column++) share[column] += part * (Math.min(right, column + 1) - Math.max(left, column));
    };
    let number = first;
    for (; number < slots.length && slots[number][START] < view[1]; number++) {
      const slot = slots[number];
      if (isRest(slots, number)) {
        const [from, to] = [endOf(slots[number - 1]), slot[START]];
        for (const [name, part] of steadyOf(stage).kinds) add(paler[name], from, to, part);
        lanes.forEach((share, i) => add(share, from, to, steadyOf(stage).lanes[i]));
      }
      add(shares[kind(slot)], slot[START], endOf(slot));
      lanes.forEach((share, i) => add(share, slot[START], endOf(slot), data.lanes[stage][slot[LANE]][i] / Math.max(slot[LENGTH], 1)));
    }
    add(shares.after, data.makespan, data.step);
    const [height, from, to] = [slotPx(), Math.max(0, view[0]), Math.min(data.makespan, view[1])];
    pen.fillStyle = inks.bubbles;
    if (to > from) pen.fillRect(at(from), top, at(to) - at(from), height);
    const filled = new Float64Array(columns);
    for (const [name, share, alpha] of [...Object.entries(shares).map((each) => [...each, 1]), ...Object.entries(paler).map((each) => [...each, 0.6])]) {
      pen.fillStyle = data.colours[name];
      pen.globalAlpha = alpha;
      for (let column = 0; column < columns; column++) {
        if (!share[column]) continue;
        const left = EDGE.left + column * COLUMN_PX;
        const place = [left, top + filled[column] * height, Math.min(COLUMN_PX, EDGE.left + width() - left), share[column] * height];
        if (alpha < 1) pen.clearRect(...place);
        pen.fillRect(...place);
        filled[column] += share[column];
      }
    }
    pen.globalAlpha = 1;
    lanes.forEach((share, i) => {
      pen.fillStyle = data.colours[LANES[i]];
      const bottom = top + height + (i + 1) * LANE_PX;
      share.forEach((part, column) => pen.fillRect(EDGE.left + column * COLUMN_PX, bottom - part * (LANE_PX - 2), COLUMN_PX, part * (LANE_PX - 2)));
    });
  };

  const drawStage = (pen, stage, top) => {
    const slots = data.slots[stage];
    const first = firstAfter(slots, view[0]);
    const narrow = (firstAfter(slots, view[1]) - first) * LEAST_PX > width();
    if (narrow) drawShares(pen, stage, first, top);
    else drawSlots(pen, stage, top, first);
    if (chosen?.stage !== stage) return;
    const slot = slots[chosen.number];
    const [left, right] = [Math.max(at(slot[START]), EDGE.left), Math.min(at(endOf(slot)), EDGE.left + width())];
    if (right < EDGE.left || left > EDGE.left + width()) return;
    pen.strokeStyle = inks.ink;
    pen.lineWidth = 2;
    pen.strokeRect(left, top, Math.max(right - left, 3), slotPx());
  };

  const drawSlots = (pen, stage, top, first) => {
    const slots = data.slots[stage];
    const [height, colours, lanesToo] = [slotPx(), data.colours, lanesBox.checked];
    // texts: makes what a box may say, the longest first; asked only where there is room.
    const block = (from, to, fill, texts, ink) => {
      const left = Math.max(at(from), EDGE.left);
      const right = Math.min(at(to), EDGE.left + width());
      if (right <= left) return;
      const wide = right - left;
      pen.fillStyle = fill;
      pen.fillRect(left, top, wide > 4 ? wide - 1 : wide, height);
      const fitting = wide > 12 && texts().find((each) => widthOf(each) < wide - 4);
      if (fitting) write(pen, fitting, ink, (left + right) / 2, top + height / 2 + 4);
    };
    const gap = (number) => {
      const [from, idle] = [number ? endOf(slots[number - 1]) : 0, idleBefore(slots, number)];
      if (isRest(slots, number)) block(from, slots[number][START], inks.line, () => ["…"], inks.quiet);
      else if (idle > 0 && at(from + idle) > EDGE.left) {
        const wide = (idle / (view[1] - view[0])) * width();
        const texts = () => [`${data.words.bubble} ${seconds(idle)}`];
        block(from, from + idle, wide > 6 ? inks.bubbles : data.colours.bubble, texts, inks.ink);
      }
    };
    let number = first;
    for (; number < slots.length && slots[number][START] < view[1]; number++) {
      const slot = slots[number];
      gap(number);
      block(slot[START], endOf(slot), colours[kind(slot)], () => [fullName(slot), shortName(slot)], slot[B] < 0 ? "#1b2430" : "#ffffff");
      if (lanesToo && (slot[LENGTH] / (view[1] - view[0])) * width() > 1.5) {
        LANES.forEach((lane, i) => {
          pen.fillStyle = colours[lane];
          const wide = (data.lanes[stage][slot[LANE]][i] / (view[1] - view[0])) * width();
          const left = Math.max(at(slot[START]), EDGE.left);
          pen.fillRect(left, top + height + 2 + i * LANE_PX, Math.min(at(slot[START]) + wide, EDGE.left + width()) - left, LANE_PX - 2);
        });
      }
    }
    gap(number);
    if (data.step > data.makespan && view[1] > data.makespan) block(data.makespan, data.step, colours.after, () => [data.words.after], "#1b2430");
  };

  const drawAxis = (pen, bottom) => {
    pen.fillStyle = inks.surface;
    pen.fillRect(0, 0, widthPx, EDGE.top - 2);
    const [low, high] = view.map((ticks) => ticks / data.ticks_per_s);
    const { values, digits } = axisTicks(low, high, Math.max(2, width() / 110));
    pen.strokeStyle = inks.line;
    pen.fillStyle = inks.quiet;
    pen.lineWidth = 1;
    for (const value of values) {
      const x = at(value * data.ticks_per_s);
      pen.beginPath();
      pen.moveTo(x, EDGE.top - 6);
      pen.lineTo(x, bottom);
      pen.stroke();
      pen.fillText(`${value.toFixed(digits)} s`, Math.min(x, EDGE.left + width() - 20), 14);
    }
  };

  const draw = () => {
    waiting = false;
    widthPx = canvas.clientWidth;
    if (widthPx === 0) return; // not shown; drawn when it is again
    const [stages, row] = [data.slots.length, rowPx()];
    const whole = EDGE.top + stages * row;
    const shownPx = Math.min(whole, MOST_PX);
    frame.style.height = `${shownPx}px`;
    tall.style.height = `${whole}px`;
    canvas.style.height = `${shownPx}px`;
    const scale = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(widthPx * scale), Math.round(shownPx * scale)];
    if (canvas.width !== wide) canvas.width = wide;
    if (canvas.height !== high) canvas.height = high;
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    inks ??= { ink: css("--ink"), quiet: css("--ink-quiet"), line: css("--line"), surface: css("--surface"), bubbles: hatch(pen) };
    pen.clearRect(0, 0, widthPx, shownPx);
    pen.font = FONT;
    pen.textAlign = "center";
    drawAxis(pen, shownPx);
    pen.save();
    pen.beginPath();
    pen.rect(0, EDGE.top - 2, widthPx, shownPx);
    pen.clip();
    const first = Math.max(0, rowAt(EDGE.top));
    for (let stage = first; stage < stages && stage <= rowAt(shownPx); stage++) {
      const top = EDGE.top + stage * row - frame.scrollTop;
      drawStage(pen, stage, top);
      write(pen, String(stage), inks.quiet, EDGE.left / 2, top + slotPx() / 2 + 4);
    }
    pen.restore();
    if (selected) {
      pen.fillStyle = "rgba(141, 184, 242, 0.35)";
      pen.fillRect(Math.min(...selected), 0, Math.abs(selected[1] - selected[0]), shownPx);
    }
    box.dataset.drawn = "true";
    box.dataset.from = view.join(" ");
  };
  const redraw = () => {
    if (waiting || !data) return;
    waiting = true;
    requestAnimationFrame(draw);
  };

  const look = (from, to) => {
    const span = Math.min(data.step, Math.max(LEAST_TICKS, to - from));
    const start = Math.max(0, Math.min(from, data.step - span));
    view = [start, start + span];
    const free = data.step - span;
    position.disabled = free <= 0;
    position.value = free > 0 ? Math.round((STEPS * start) / free) : 0;
    position.setAttribute("aria-valuetext", `${seconds(view[0])} – ${seconds(view[1])}`);
    redraw();
  };
  const zoom = (factor, around = (view[0] + view[1]) / 2) =>
    look(around + (view[0] - around) * factor, around + (view[1] - around) * factor);
  const isWhole = () => view[1] - view[0] >= data.step;

  const described = (stage, number) => {
    const [slots, { words }] = [data.slots[stage], data];
    const slot = slots[number];
    const lanes = LANES.map((lane, i) => `${words[lane]} ${seconds(data.lanes[stage][slot[LANE]][i])}`);
    const idle = idleBefore(slots, number);
    const when = words.when.replace("{length}", seconds(slot[LENGTH])).replace("{start}", seconds(slot[START]));
    const { colon, comma } = document.body.dataset;
    const named = words.named.replace("{text}", fullName(slot)).replace("{numbers}", words[kind(slot)]);
    return [`${words.stage} ${stage}${comma}${named}${colon}${when}`, ...lanes, ...(idle ? [`${words.idle_before} ${seconds(idle)}`] : [])].join(" · ");
  };
  const choose = (stage, number, follow) => {
    const slots = data.slots[stage];
    chosen = { stage, number: Math.max(0, Math.min(number, slots.length - 1)) };
    const slot = slots[chosen.number];
    chosenText.textContent = described(stage, chosen.number);
    stageInput.value = stage;
    slotInput.max = slots.length - 1;
    slotInput.value = chosen.number;
    slotInput.setAttribute("aria-valuetext", fullName(slot));
    if (follow) {
      const [top, height] = [stage * rowPx(), frame.clientHeight - EDGE.top];
      if (top < frame.scrollTop || top + rowPx() > frame.scrollTop + height) frame.scrollTop = top - height / 2;
      const span = view[1] - view[0];
      if (slot[START] < view[0] || endOf(slot) > view[1]) look(slot[START] - span / 2, slot[START] + span / 2);
    }
    redraw();
  };
  const slotAt = (x, y) => {
    const stage = rowAt(y);
    if (!(stage in data.slots) || x < EDGE.left) return null;
    const number = firstAfter(data.slots[stage], instantAt(x));
    return number < data.slots[stage].length && data.slots[stage][number][START] <= instantAt(x) ? { stage, number } : null;
  };

  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (!data || event.button) return;
    canvas.setPointerCapture(event.pointerId);
    const moves = event.shiftKey || event.pointerType === "touch";
    held = { x: event.offsetX, y: event.offsetY, view: [...view], top: frame.scrollTop, moves, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!data) return;
    if (!held) {
      const found = slotAt(event.offsetX, event.offsetY);
      hovered.textContent = found ? described(found.stage, found.number) : "";
      return;
    }
    const right = event.offsetX - held.x;
    held.moved ||= Math.abs(right) > 4;
    if (!held.moved) return;
    if (held.moves) {
      const shift = (right / width()) * (held.view[1] - held.view[0]);
      look(held.view[0] - shift, held.view[1] - shift);
      if (event.pointerType !== "touch") frame.scrollTop = held.top - (event.offsetY - held.y);
    } else selected = [held.x, event.offsetX].map((x) => Math.max(EDGE.left, Math.min(x, EDGE.left + width())));
    redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.moved) {
      const found = slotAt(event.offsetX, event.offsetY);
      if (found) choose(found.stage, found.number, false);
    } else if (held && selected) look(...selected.map(instantAt).sort((a, b) => a - b));
    held = selected = null;
    redraw();
  });
  canvas.addEventListener("pointercancel", () => {
    held = selected = null;
    redraw();
  });
  canvas.addEventListener("pointerleave", () => (hovered.textContent = ""));
  canvas.addEventListener("dblclick", () => look(0, data.step));
  frame.addEventListener("scroll", redraw);
  frame.addEventListener(
    "wheel",
    (event) => {
      if (!data) return;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const shift = ((event.deltaX || event.deltaY) / width()) * (view[1] - view[0]);
        look(view[0] + shift, view[1] + shift);
      } else if (event.deltaY > 0 && isWhole()) return; // nothing left to zoom out of: the page scrolls
      else zoom(1.0015 ** event.deltaY, instantAt(event.offsetX));
      event.preventDefault();
    },
    { passive: false },
  );
  frame.addEventListener("keydown", (event) => {
    if (!data || event.ctrlKey || event.metaKey || event.altKey) return;
    const span = view[1] - view[0];
    const does = {
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      ArrowLeft: () => look(view[0] - span / 5, view[1] - span / 5),
      ArrowRight: () => look(view[0] + span / 5, view[1] + span / 5),
      0: () => look(0, data.step),
    }[event.key];
    if (!does) return;
    does();
    event.preventDefault();
  });
  for (const button of box.querySelectorAll("[data-zoom]")) {
    const edge = () => Math.min(data.step, (24 * data.step) / Math.max(...data.slots.map((slots) => slots.length)));
    const does = {
      in: () => zoom(0.5),
      out: () => zoom(2),
      start: () => look(0, edge()),
      end: () => look(data.step - edge(), data.step),
      whole: () => look(0, data.step),
    };
    button.addEventListener("click", () => data && does[button.dataset.zoom]());
  }
  position.addEventListener("input", () => {
    const span = view[1] - view[0];
    const start = ((data.step - span) * position.value) / STEPS;
    look(start, start + span);
  });
  stageInput.addEventListener("input", () => {
    const stage = Number(stageInput.value);
    if (data && stageInput.value !== "" && stage in data.slots) choose(stage, Number(slotInput.value), true);
  });
  slotInput.addEventListener("input", () => data && choose(Number(stageInput.value) || 0, Number(slotInput.value), true));
  lanesBox.addEventListener("change", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    inks = null;
    redraw();
  });
  new ResizeObserver(redraw).observe(tall);

  const explain = () => {
    const used = new Set(data.slots.flat().map(kind));
    const names = [...["forward", "backward", "pair"].filter((each) => used.has(each)), "bubble", "after"];
    const entry = (name) => {
      const item = document.createElement("li");
      const swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.backgroundColor = data.colours[name];
      item.append(swatch, data.words[name]);
      return item;
    };
    legend.replaceChildren(...names.map(entry));
    if (lanesBox.checked) {
      // A pass and a lane may have one colour: the lanes are told apart by their heading.
      legend.append(Object.assign(document.createElement("li"), { textContent: data.words.lanes }), ...LANES.map(entry));
    }
    if (data.left_out) legend.append(Object.assign(document.createElement("li"), { textContent: data.words.paler }));
  };
  lanesBox.addEventListener("change", () => data && explain());

  const read = async () => {
    const response = await fetch(box.dataset.slots, { headers: { Accept: "application/json" } });
    const body = await response.json();
    if (!response.ok) throw new Error(body.error);
    data = body;
    document.getElementById("timeline-lead").textContent = data.lead;
    lanesBox.checked = data.slots.length <= 8;
    stageInput.max = data.slots.length - 1;
    explain();
    look(0, data.step);
    slotInput.max = data.slots[0].length - 1;
  };
  box.hidden = false;
  const seen = new IntersectionObserver(
    (entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      read().catch((error) => (chosenText.textContent = error.message));
    },
    { rootMargin: "300px" },
  );
  seen.observe(box);
})();
