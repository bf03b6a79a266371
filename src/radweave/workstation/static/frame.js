// What all pages have: light or dark, log out, the help of keys.

import { ask } from "./api.js";
import { alarm, at } from "./dom.js";
import "./keys.js";

at("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = (root.dataset.theme ?? "dark") === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("radweave.theme", root.dataset.theme);
  } catch {
    // No storage: it holds for this page.
  }
});

at("logout")?.addEventListener("click", async () => {
  let ended = null;
  try {
    ended = await ask("DELETE", "/session");
  } catch (problem) {
    if (problem.status !== 401) return alarm(problem);
  }
  location.assign(ended?.provider ?? "/login");
});
