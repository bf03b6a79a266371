// Keys of a page, and the help that lists them. Single keys can be switched off (WCAG 2.1.4).

import { at, button, h } from "./dom.js";

const OFF = "radweave.keys-off";
const known = [];

const isOff = () => localStorage.getItem(OFF) === "1";
const isTyping = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;

/** Let a key do something. Where the focus is in a part that has keys of its own (`data-own-keys`), it is left to that. */
export function key(name, words, action) {
  known.push({ name, words, action });
}

/** A key that something else listens to: listed in the help only. */
export function listed(name, words) {
  known.push({ name, words, action: null });
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (document.querySelector("dialog[open]") || (isOff() && event.key !== "?")) return;
  if (event.key !== "?" && event.target.closest("[data-own-keys]")) return;
  const found = known.find((one) => one.action && one.name === event.key);
  if (!found) return;
  event.preventDefault();
  found.action();
});

/** Show a dialog; it is gone when it is closed. */
export function dialog(title, ...children) {
  const shown = h("dialog", { "aria-label": title, onclose: () => shown.remove() }, h("h2", {}, title), children);
  document.body.append(shown);
  shown.showModal();
  return shown;
}

export function help() {
  const off = h("input", {
    type: "checkbox", id: "keys-off", onchange: (event) => localStorage.setItem(OFF, event.target.checked ? "1" : "0"),
  });
  off.checked = isOff();
  const rows = known.map((one) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, one.name)), h("td", {}, one.words)));
  const shown = dialog(
    "Keys",
    h("table", { class: "keys" }, h("tbody", {}, rows)),
    h("p", { class: "soft" }, "Everything can be reached with Tab, Enter and Space too. Inside the images, their own keys hold."),
    h("p", {}, h("label", {}, off, " Switch single keys off (except ?)")),
    h("p", {}, button("Close", () => shown.close(), { class: "main" })),
  );
}

key("?", "this help", help);
at("help")?.addEventListener("click", help);
