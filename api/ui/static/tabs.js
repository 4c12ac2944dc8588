// Links of one page as tabs, walked by arrow keys; `open` shows what a chosen one leads to.
const makeTabs = (list, tabs, open) => {
  list.setAttribute("role", "tablist");
  for (const [place, tab] of tabs.entries()) {
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", (event) => {
      event.preventDefault();
      open(tab);
    });
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (event.key === " " || to !== undefined) event.preventDefault();
      if (event.key === " ") open(tab);
      if (to === undefined) return;
      const next = tabs[(to + tabs.length) % tabs.length];
      open(next);
      next.focus();
    });
  }
  return (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
    }
  };
};

// The parts of a long page behind tabs; which one is open stands in the address. Without scripts, and on paper, they
// follow each other.
(() => {
  const list = document.getElementById("parts");
  if (!list) return;
  const tabs = [...list.querySelectorAll("a")];
  const partOf = new Map(tabs.map((tab) => [tab, document.getElementById(tab.hash.slice(1))]));
  const language = document.querySelector("a.language");
  const plain = language.getAttribute("href");

  const show = (tab) => {
    mark(tab);
    for (const [each, part] of partOf) part.classList.toggle("away", each !== tab);
    language.setAttribute("href", tab === tabs[0] ? plain : plain + tab.hash);
  };
  const mark = makeTabs(list, tabs, (tab) => {
    show(tab);
    history.replaceState(null, "", `${location.pathname}${location.search}${tab.hash}`);
  });
  for (const [tab, part] of partOf) {
    tab.setAttribute("aria-controls", part.id);
    part.setAttribute("role", "tabpanel");
    part.setAttribute("aria-labelledby", tab.id);
  }

  // An address may name a part or something in one.
  const follow = () => {
    const target = location.hash ? document.getElementById(location.hash.slice(1)) : null;
    const tab = tabs.find((each) => partOf.get(each).contains(target));
    if (!tab) return;
    show(tab);
    if (target !== partOf.get(tab)) target.scrollIntoView();
  };
  show(tabs[0]);
  follow();
  window.addEventListener("hashchange", follow);

  const all = () => {
    for (const part of partOf.values()) part.classList.remove("away");
  };
  window.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "p") all();
  });
  window.addEventListener("beforeprint", all);
  window.addEventListener("afterprint", () => show(tabs.find((tab) => tab.getAttribute("aria-selected") === "true")));
})();
