// Shows a running search as it goes: server-sent events, or asking again where they do not come through.
(() => {
  const section = document.getElementById("progress");
  if (!section) return;
  const address = `${document.body.dataset.root}/v1/searches/${encodeURIComponent(section.dataset.search)}`;
  const message = document.getElementById("progress-message");
  const badge = document.querySelector("h1 .status");
  const finished = new Set(["optimal", "feasible", "infeasible", "cancelled", "failed"]);
  const numbers = new Intl.NumberFormat("en");
  const POLL_MS = 2000;
  const QUEUE_MS = 5000;
  const noWorker = document.getElementById("progress-no-worker");
  const queue = document.getElementById("progress-queue");
  const live = document.getElementById("progress-live");
  let polling = null;

  const words = {
    seconds: (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 100 ? 2 : 1)} s`),
    share: (value) => `${(100 * value).toFixed(1)} %`,
    count: (value) => numbers.format(value),
  };

  const fill = (part, values) => {
    for (const [kind, text] of Object.entries(words)) {
      for (const element of part.querySelectorAll(`[data-${kind}]`)) {
        const value = values[element.dataset[kind]];
        if (typeof value === "number") element.textContent = text(value);
      }
    }
  };

  // While it waits: its place, and whether anybody is there who would take it.
  const asking = window.setInterval(async () => {
    const answer = await fetch(address, { headers: { Accept: "application/json" } }).catch(() => null);
    if (!answer || !answer.ok) return;
    const search = await answer.json();
    noWorker.hidden = !search.no_live_worker;
    queue.hidden = !search.queue;
    if (search.queue) fill(queue, search.queue);
  }, QUEUE_MS);

  const running = () => {
    badge.textContent = message.dataset.status;
    badge.className = "status status-running";
    noWorker.hidden = true;
    queue.hidden = true;
    window.clearInterval(asking);
  };

  const show = (progress) => {
    running();
    live.hidden = false;
    fill(section, progress);
    section.dispatchEvent(new CustomEvent("progress-report", { detail: progress }));
    message.textContent = said(progress);
  };

  // What is new below, for those who hear the page.
  const said = ({ incumbent_s: step, solved }) => {
    if (typeof step === "number") return message.dataset.best.replace("{}", words.seconds(step));
    return solved ? message.dataset.none : "";
  };

  const seen = (status) => {
    if (status === "running") running();
    if (finished.has(status)) window.location.reload();
  };

  const poll = () => {
    if (polling !== null) return;
    polling = window.setInterval(async () => {
      const answer = await fetch(address, { headers: { Accept: "application/json" } }).catch(() => null);
      if (answer && answer.ok) seen((await answer.json()).status);
    }, POLL_MS);
  };

  const source = new EventSource(`${address}/events`);
  source.addEventListener("progress", (event) => show(JSON.parse(event.data)));
  source.addEventListener("status", (event) => seen(JSON.parse(event.data).status));
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) poll();
  });
})();
