// Asks /v1/estimates as soon as a knob is turned; without scripts the form posts itself.
"use strict";

(() => {
  const island = document.getElementById("what-if-data");
  const form = document.getElementById("what-if-form");
  if (!island || !form) return;
  const base = JSON.parse(island.textContent);
  const answer = document.getElementById("what-if-answer");
  const faults = document.getElementById("what-if-errors");
  const knobs = [...form.querySelectorAll("select")];
  let asked = 0;

  const typed = (text) => (/^\d+$/.test(text) ? Number(text) : { true: true, false: false }[text] ?? text);

  // What followed from the plan's own fields is left out, so that it follows anew.
  const changed = () => {
    const strategy = structuredClone(base.strategy);
    const turned = knobs.filter((knob) => knob.value !== knob.dataset.now);
    delete strategy.dp;
    if (turned.some((knob) => base.reshaping.includes(knob.name))) {
      for (const name of base.derived) delete strategy[name];
      for (const name of ["per_stage", "num_layers_per_stage"]) delete strategy.recompute[name];
    }
    for (const knob of turned) {
      strategy[knob.name] = knob.name === "recompute" ? { granularity: knob.value } : typed(knob.value);
    }
    return strategy;
  };

  const put = (key, text) => (answer.querySelector(`[data-key="${key}"]`).textContent = text);

  // As `chance` of the reports writes it.
  const chance = (p) => {
    if (p == null) return "–";
    if (p >= 0.995 && p < 1) return "> 99 %";
    return p > 0 && p < 0.005 ? "< 1 %" : `${Math.round(100 * p)} %`;
  };

  const show = (plan) => {
    const against = 100 * (plan.step_time_s / base.step_time_s - 1);
    const fits = answer.querySelector('[data-key="fits"]');
    put("step_time_s", plan.step_time_s.toFixed(plan.step_time_s < 100 ? 2 : 1));
    put("against", `${against < 0 ? "−" : "+"}${Math.abs(against).toFixed(1)} %`);
    put("tokens_per_s_per_npu", Math.round(plan.tokens_per_s_per_npu).toLocaleString("en"));
    put("peak_memory_gib", plan.peak_memory_gib.toFixed(1));
    put("p_fits", chance(plan.p_fits));
    fits.textContent = plan.fits ? fits.dataset.yes : fits.dataset.no;
    faults.textContent = "";
  };

  const refuse = (body) => {
    for (const cell of answer.querySelectorAll("[data-key]")) cell.textContent = "–";
    const errors = (body.errors ?? []).map((e) => `${e.detail}${e.hint ? ` (${e.hint})` : ""}`);
    faults.textContent = `${answer.dataset.failed}: ${errors.join("; ") || body.detail}`;
  };

  const ask = async () => {
    const number = ++asked;
    const response = await fetch(`${document.body.dataset.root}/v1/estimates`, {
      method: "POST",
      headers: {
        "Content-Type": "application/json",
        Accept: "application/json",
        "Accept-Language": document.documentElement.lang,
      },
      body: JSON.stringify({ ...base.spec, strategy: changed() }),
    });
    const body = await response.json();
    if (number !== asked) return; // a later turn was faster
    if (response.ok) show(body);
    else refuse(body);
    answer.dataset.answered = number;
  };

  document.getElementById("what-if-button").hidden = true;
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const knob of knobs) knob.addEventListener("change", () => ask().catch(() => form.submit()));
})();
