// Copies what a button names; the buttons show only where the browser lets a page copy.
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
