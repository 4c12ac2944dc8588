// Filters of the list under names that the reader gives; they are kept in this browser alone.
(() => {
  const box = document.getElementById("saved-filters");
  if (!box) return;
  const KEY = `autodeploy.filters${document.body.dataset.root}`;
  const list = box.querySelector("ul");
  const form = box.querySelector("form");
  const name = form.querySelector("input");

  // What the address filters and sorts by, in one order, so that equal filters are equal texts.
  const query = (text) => {
    const pairs = [...new URLSearchParams(text)].filter(([key, value]) => value && key !== "lang" && key !== "after");
    return new URLSearchParams(pairs.sort(([a], [b]) => (a < b ? -1 : 1))).toString();
  };
  const read = () => {
    try {
      const kept = JSON.parse(window.localStorage.getItem(KEY) ?? "[]");
      return kept.filter((each) => typeof each.name === "string" && typeof each.query === "string");
    } catch {
      return [];
    }
  };
  const write = (filters) => {
    try {
      window.localStorage.setItem(KEY, JSON.stringify(filters));
    } catch {
      // A browser that keeps nothing keeps no filter either.
    }
    show();
  };
  const now = query(window.location.search);
  const lang = new URLSearchParams(window.location.search).get("lang");

  const show = () => {
    const filters = read();
    list.hidden = !filters.length;
    form.hidden = !now || filters.some((each) => each.query === now);
    box.hidden = list.hidden && form.hidden;
    list.replaceChildren(
      ...filters.map((each) => {
        const item = document.createElement("li");
        const link = document.createElement("a");
        const remove = document.createElement("button");
        const address = new URLSearchParams(each.query);
        if (lang) address.set("lang", lang);
        link.className = "chip";
        link.href = `${window.location.pathname}?${address}`;
        link.textContent = each.name;
        if (each.query === now) link.setAttribute("aria-current", "true");
        remove.type = "button";
        remove.textContent = "×";
        remove.setAttribute("aria-label", `${box.dataset.remove} ${each.name}`);
        remove.addEventListener("click", () => {
          write(read().filter((other) => other.name !== each.name));
          (list.querySelector("button") ?? document.getElementById("content")).focus();
        });
        item.append(link, remove);
        return item;
      }),
    );
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = name.value.trim();
    if (!given) return;
    name.value = "";
    write([...read().filter((each) => each.name !== given), { name: given, query: now }]);
    list.querySelector("[aria-current]")?.focus();
  });
  show();
})();
