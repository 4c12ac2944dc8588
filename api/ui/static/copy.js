// Copies what a button names; the buttons show only where the browser lets a page copy.
(() => {
  if (navigator.clipboard) {
    for (const button of document.querySelectorAll("[data-copy]")) {
      const label = button.textContent;
      button.hidden = false;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = button.dataset.done;
        window.setTimeout(() => (button.textContent = label), 1500);
      });
    }
  }
  // A link from the table opens the plan it leads to.
  const open = () => {
    const target = window.location.hash ? document.getElementById(window.location.hash.slice(1)) : null;
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  window.addEventListener("hashchange", open);
  open();
})();
