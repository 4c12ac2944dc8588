// Reads a pasted file while it is typed and says what was understood; nothing is stored.
(() => {
  const form = document.getElementById("paste");
  const text = document.getElementById("spec-text");
  const status = document.getElementById("paste-status");
  if (!form || !status) return;
  let waiting = null;
  let asked = 0;

  const line = (list, words) => {
    const item = document.createElement("li");
    item.textContent = words;
    list.append(item);
  };

  const { colon } = document.body.dataset;
  const show = (body) => {
    const title = document.createElement("p");
    const list = document.createElement("ul");
    status.className = body.errors.length ? "alert" : "good";
    title.textContent = body.errors.length
      ? status.dataset.faults
      : `${status.dataset.understood}${colon}${body.kind.replaceAll("-", " ")} (${body.taken})`;
    for (const e of body.errors) line(list, [e.pointer, e.message, e.hint].filter(Boolean).join(" · "));
    for (const words of body.contradicted ?? []) line(list, `${status.dataset.contradicted}${colon}${words}`);
    for (const words of body.doubts ?? []) line(list, words);
    if (body.unknown?.length) line(list, `${status.dataset.unknown}${colon}${body.unknown.slice(0, 20).join(", ")}`);
    status.replaceChildren(title, list);
    status.dataset.shown = String(asked);
  };

  const read = async () => {
    const number = ++asked;
    if (text.value.trim() === "") {
      status.replaceChildren();
      return;
    }
    const answer = await fetch(`${document.body.dataset.root}/new/read`, {
      method: "POST",
      headers: { "Accept-Language": document.documentElement.lang },
      body: new URLSearchParams(new FormData(form)),
    });
    if (answer.ok && number === asked) show(await answer.json());
  };

  // Whoever types goes on; what was pasted or chosen is whole.
  const soon = (event) => {
    const typed = event?.type === "input" && event.inputType !== "insertFromPaste";
    window.clearTimeout(waiting);
    waiting = window.setTimeout(() => read().catch(() => status.replaceChildren()), typed ? 250 : 0);
  };
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
  soon(); // what was pasted before this script was loaded, or is still there after a step back
})();
