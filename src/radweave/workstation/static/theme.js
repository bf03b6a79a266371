// Before anything is drawn: the choice of light or dark that was made in this browser.
try {
  const chosen = localStorage.getItem("radweave.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // No storage: it is dark, as in a reading room.
}
