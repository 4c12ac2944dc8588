// Ways to start a search as tabs, and choices that follow the hardware profile; without scripts all is on one page.
(() => {
  const ways = document.getElementById("ways");
  if (!ways) return;
  const tabs = [...ways.querySelectorAll("a")];
  const text = document.getElementById("spec-text");
  const file = document.querySelector("#paste input[type=file]");
  const panels = new Map(tabs.map((tab) => [tab.hash.slice(1), document.getElementById(`way-${tab.hash.slice(1)}`)]));

  const choose = (tab) => {
    const panel = tab.hash.slice(1);
    mark(tab);
    for (const [id, element] of panels) element.hidden = id !== panel;
    panels.get(panel).setAttribute("aria-labelledby", tab.id);
    if (panel !== "paste") return;
    document.querySelector("#paste h2").textContent = tab.textContent;
    text.placeholder = tab.dataset.example;
    file.accept = tab.dataset.accept;
    // A config.json says nothing of the run.
    const bare = tab.dataset.way === "config";
    for (const name of ["num_npus", "seq_length", "global_batch_size"]) {
      document.querySelector(`label[for="paste-${name}"] .optional`).hidden = bare;
    }
    const cluster = document.getElementById("paste-cluster");
    cluster.options[0].hidden = bare;
    if (bare && !cluster.value) cluster.value = cluster.options[1].value;
  };
  const mark = makeTabs(ways, tabs, (tab) => {
    choose(tab);
    history.replaceState(null, "", `${location.pathname}${location.search}#${tab.dataset.way}`);
  });
  for (const tab of tabs) tab.setAttribute("aria-controls", `way-${tab.hash.slice(1)}`);
  for (const panel of panels.values()) panel.setAttribute("role", "tabpanel");

  // What was pasted before shows its own way, else the address names one.
  const wayOf = (pasted) => {
    if (/"(architectures|hidden_size|n_embd)"/.test(pasted)) return "config";
    return /--[a-z]+-[a-z]/.test(pasted) ? "script" : "spec";
  };
  const named = (name) => tabs.find((tab) => tab.dataset.way === name);
  const shown = () => (text.value.trim() ? named(wayOf(text.value)) : named(location.hash.slice(1))) ?? tabs[0];
  choose(shown());
  window.addEventListener("hashchange", () => named(location.hash.slice(1)) && choose(named(location.hash.slice(1))));

  // Grades, cards and batch of the profile; what the person has typed stays.
  const profiles = JSON.parse(document.getElementById("profile-data").textContent);
  const [profile, cards, grade, batch] = ["cluster-profile", "cluster-num_npus", "cluster-device", "training-global_batch_size"].map(
    (name) => document.getElementById(`f-${name}`),
  );
  const grades = [...grade.options];
  const usual = grades[0].textContent;
  const help = document.getElementById(`${cards.id}-help`);
  let before = profiles[profile.value];
  const follow = () => {
    const now = profiles[profile.value];
    const chosen = grade.value;
    grade.replaceChildren(...grades.filter((option) => !option.value || now.devices.includes(option.value)));
    grade.value = now.devices.includes(chosen) ? chosen : "";
    for (const option of grade.options) {
      option.textContent = option.value || `${usual} (${now.device})`;
    }
    help.textContent = now.help;
    if (cards.value === String(before.cards)) cards.value = now.cards;
    if (batch.value === String(before.batch)) batch.value = now.batch;
    before = now;
  };
  profile.addEventListener("change", follow);
  follow();
})();
