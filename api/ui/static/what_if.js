// Sends the form as soon as a knob or a number is changed, and asks for JSON; without scripts the form posts itself.
(() => {
  const island = document.getElementById("what-if-data");
  const form = document.getElementById("what-if-form");
  if (!island || !form) return;
  const base = JSON.parse(island.textContent);
  const answer = document.getElementById("what-if-answer");
  const faults = document.getElementById("what-if-errors");
  const rules = document.getElementById("what-if-rules");
  const line = document.getElementById("what-if-line");
  const keep = document.getElementById("what-if-keep");
  const kept = document.getElementById("what-if-kept");
  const turnable = [...form.querySelectorAll("[data-now]")];
  let asked = 0;

  // Memory that was not turned is that of the chip grade.
  const follow = (grade) => {
    const memory = turnable.find((each) => each.name === "usable_hbm_gib");
    const own = base.memory[grade];
    if (!memory || own === undefined) return;
    if (memory.value === memory.dataset.now) memory.value = own;
    memory.dataset.now = own;
  };

  // The address keeps what was turned, and what was kept beside it, so that it can be sent on.
  const trays = []; // changes that were kept, as the address writes them: ep=32,tp=2
  const turned = () => turnable.filter((each) => each.value !== each.dataset.now);
  const remember = () => {
    const asked = new URLSearchParams(location.search);
    for (const each of turnable) asked.delete(each.name);
    for (const each of turned()) asked.set(each.name, each.value);
    asked.delete("kept");
    for (const each of trays) asked.append("kept", each);
    const query = asked.toString();
    history.replaceState(null, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
  };

  const recall = () => {
    const told = new URLSearchParams(location.search);
    const found = turnable.filter((each) => told.has(each.name));
    for (const each of found) {
      each.value = told.get(each.name);
      if (each.name === "device") follow(each.value);
    }
    return found.some((each) => each.value !== each.dataset.now);
  };

  const put = (key, text) => {
    const cell = answer.querySelector(`[data-key="${key}"]`);
    if (cell) cell.textContent = text;
  };

  // As `chance` of the reports writes it.
  const chance = (p) => {
    if (p == null) return "–";
    if (p >= 0.995 && p < 1) return "> 99 %";
    return p > 0 && p < 0.005 ? "< 1 %" : `${Math.round(100 * p)} %`;
  };

  const seconds = (value) => value.toFixed(value < 1 ? 3 : value < 10 ? 2 : 1);
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)} %`;

  // A bar as the `bar` of the templates draws it; both to the scale of the longer step.
  const drawn = (title, breakdown, longestS) => {
    const make = (name, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      return element;
    };
    const bar = make("svg", { class: "bar", viewBox: "0 0 1000 30", preserveAspectRatio: "none", role: "img" });
    const words = [];
    let start = 0;
    for (const [part, name] of Object.entries(base.bar)) {
      const width = (1000 * (breakdown[part] ?? 0)) / longestS;
      if (!(width > 0)) continue;
      const said = make("title", {});
      said.textContent = `${name} ${(width / 10).toFixed(1)} %`;
      words.push(said.textContent);
      const piece = make("rect", { class: `c-${part}`, x: start.toFixed(2), y: 0, width: width.toFixed(2), height: 30 });
      piece.append(said);
      bar.append(piece);
      start += width;
    }
    bar.setAttribute("aria-label", `${title}${document.body.dataset.colon}${words.join(document.body.dataset.comma)}`);
    return bar;
  };

  const drawBoth = (plan) => {
    const [now, after] = ["now", "changed"].map((name) => document.getElementById(`what-if-${name}`));
    if (!now) return; // a step that takes no time
    const longestS = Math.max(plan.step_time_s, base.step_time_s);
    const caption = document.createElement("p");
    caption.className = "method";
    caption.textContent = after.dataset.title;
    now.replaceChildren(drawn(now.dataset.title, base.breakdown, longestS));
    after.replaceChildren(caption, drawn(after.dataset.title, plan.breakdown, longestS));
  };

  const show = ({ plan, strategy, rules: broken }) => {
    const against = 100 * (plan.step_time_s / base.step_time_s - 1);
    const fits = answer.querySelector('[data-key="fits"]');
    put("step_time_s", seconds(plan.step_time_s));
    put("interval", [plan.uncertainty.low_s, plan.uncertainty.high_s].map(seconds).join(" – "));
    put("against", signed(against));
    put("tokens_per_s_per_npu", Math.round(plan.tokens_per_s_per_npu).toLocaleString("en"));
    put("peak_memory_gib", plan.peak_memory_gib.toFixed(1));
    put("p_fits", chance(plan.p_fits));
    put("strategy", strategy);
    put("stages", plan.stages.map((stage) => stage.total_gib.toFixed(1)).join(" "));
    for (const cell of answer.querySelectorAll("[data-part]")) {
      cell.textContent = Number((plan.breakdown[cell.dataset.part] ?? 0).toPrecision(3));
    }
    fits.textContent = plan.fits ? fits.dataset.yes : fits.dataset.no;
    faults.textContent = "";
    keep.hidden = !turned().length;
    line.textContent = [
      `${seconds(plan.step_time_s)} s (${signed(against)})`,
      `${plan.peak_memory_gib.toFixed(1)} GiB`,
      `${plan.fits ? line.dataset.fits : line.dataset.not} ${chance(plan.p_fits)}`,
      ...(broken.length ? [line.dataset.broken] : []),
    ].join(" · ");
    rules.replaceChildren(...broken.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
    drawBoth(plan);
  };

  const refuse = (body) => {
    rules.replaceChildren();
    for (const cell of answer.querySelectorAll("[data-key], [data-part]")) cell.textContent = "–";
    const errors = (body.errors ?? []).map((e) => `${e.detail}${e.hint ? ` · ${e.hint}` : ""}`);
    document.getElementById("what-if-changed")?.replaceChildren();
    line.textContent = "";
    keep.hidden = true;
    faults.textContent = `${answer.dataset.failed}${document.body.dataset.colon}${errors.join(" · ") || body.detail}`;
  };

  const request = (body) =>
    fetch(form.action, {
      method: "POST",
      headers: { Accept: "application/json", "Accept-Language": document.documentElement.lang },
      body,
    });

  // Changes that were kept, a row each; the address has them, so that they are asked again when it is opened.
  const rows = kept.querySelector("tbody");
  const titleOf = (change) =>
    change
      .split(",")
      .map((part) => {
        const [name, value] = part.split("=");
        const said = [...(form.elements[name]?.options ?? [])].find((option) => option.value === value)?.textContent ?? value;
        return `${form.querySelector(`label[for="knob-${CSS.escape(name)}"]`)?.textContent ?? name} ${said.replace(/ [*✕]/g, "")}`;
      })
      .join(document.body.dataset.comma);
  const addRow = async (change) => {
    const row = rows.insertRow();
    const head = Object.assign(document.createElement("th"), { scope: "row", textContent: titleOf(change) });
    row.append(head);
    kept.hidden = false;
    const values = new Map(change.split(",").map((part) => part.split("=")));
    const body = new URLSearchParams(turnable.map((each) => [each.name, values.get(each.name) ?? each.dataset.now]));
    const { plan, errors } = await (await request(body)).json();
    const cells = plan
      ? [seconds(plan.step_time_s), signed(100 * (plan.step_time_s / base.step_time_s - 1)), plan.peak_memory_gib.toFixed(1), chance(plan.p_fits)]
      : [(errors ?? []).map((each) => each.detail).join(" · ") || "–", "–", "–", "–"];
    for (const text of cells) Object.assign(row.insertCell(), { className: "n", textContent: text });
    const last = row.insertCell();
    for (const [label, act] of [
      [rows.dataset.show, () => turn(values)],
      [rows.dataset.remove, () => forget(change, row)],
    ]) {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "button small", textContent: label });
      button.setAttribute("aria-label", `${label} ${head.textContent}`);
      button.addEventListener("click", act);
      last.append(button, " ");
    }
    kept.dataset.rows = rows.rows.length;
  };
  const turn = (values) => {
    for (const each of turnable) each.value = values.get(each.name) ?? each.dataset.now;
    remember();
    ask();
  };
  const forget = (change, row) => {
    trays.splice(trays.indexOf(change), 1);
    row.remove();
    kept.hidden = !trays.length;
    remember();
  };
  keep.addEventListener("click", () => {
    const change = turned().map((each) => `${each.name}=${each.value}`).join(",");
    if (trays.includes(change)) return;
    trays.push(change);
    remember();
    addRow(change);
  });
  for (const change of new URLSearchParams(location.search).getAll("kept")) {
    trays.push(change);
    addRow(change);
  }

  // While a choice is looked over the server is asked for its values, the nearest first, so that it knows them once one is
  // taken. What it answers ahead is empty.
  const lookAhead = async (knob) => {
    const options = [...knob.options];
    const at = knob.selectedIndex;
    const nearest = options.map((_, place) => place).sort((a, b) => Math.abs(a - at) - Math.abs(b - at));
    for (const place of nearest.slice(1)) {
      if (document.activeElement !== knob || knob.selectedIndex !== at) return;
      if (options[place].classList.contains("refused")) continue;
      const body = new URLSearchParams(new FormData(form));
      body.set(knob.name, options[place].value);
      const answer = await fetch(form.action, { method: "POST", headers: { Accept: "application/json", "X-Ahead": "1" }, body });
      if (!answer.ok) return;
    }
  };

  // A server that has too much to do is asked again a little later.
  const ask = async (tries = 3) => {
    const number = ++asked;
    const response = await request(new URLSearchParams(new FormData(form)));
    if (number !== asked) return; // a later turn was faster
    if (response.status === 503 && tries > 1) {
      window.setTimeout(() => number === asked && ask(tries - 1), 1000 * (Number(response.headers.get("Retry-After")) || 1));
      return;
    }
    const body = await response.json();
    if (number !== asked) return;
    if (response.ok) show(body);
    else refuse(body);
    answer.dataset.answered = number;
  };

  document.getElementById("what-if-button").hidden = true;
  // The other buttons lead elsewhere by themselves.
  form.addEventListener("submit", (event) => {
    if (!event.submitter?.hasAttribute("formaction")) event.preventDefault();
  });
  for (const each of turnable) {
    if (each.options) each.addEventListener("focus", () => lookAhead(each).catch(() => {}));
    each.addEventListener("change", () => {
      if (each.name === "device") follow(each.value);
      remember();
      ask().catch(() => form.submit());
    });
  }
  // Values that the target can't launch are grey, and say why; they can be chosen all the same, as a question.
  const grey = async () => {
    const response = await fetch(form.action.replace(/what-if.*$/, "knobs"), {
      headers: { "Accept-Language": document.documentElement.lang },
    });
    if (!response.ok) return;
    for (const [name, values] of Object.entries(await response.json())) {
      const knob = turnable.find((each) => each.name === name);
      for (const option of knob ? knob.options : []) {
        if (!(option.value in values)) continue;
        option.classList.add("refused");
        option.textContent += " ✕";
        option.title = values[option.value];
      }
    }
    form.dataset.greyed = "yes";
  };
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    grey();
  });
  seen.observe(form);
  if (recall()) ask().catch(() => form.submit());
})();
