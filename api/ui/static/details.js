// An address that names something folded opens it.
(() => {
  const open = () => {
    const target = window.location.hash ? document.getElementById(window.location.hash.slice(1)) : null;
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  window.addEventListener("hashchange", open);
  open();
})();
