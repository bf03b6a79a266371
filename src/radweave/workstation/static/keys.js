// Keys of a page, and the sheet that lists and changes them. Single keys can be switched off (WCAG 2.1.4).

import { at, button, h } from "./dom.js";
import { choose, commandOf, define, isChosen, keyFor, keyOf, parts, resetKeys, spelled } from "./viewer/keymap.js";

const OFF = "radweave.keys-off";
const PART = document.body.dataset.page;
const actions = new Map();
const fixed = [];
let relayed = null;

const isOff = () => localStorage.getItem(OFF) === "1";
const isTyping = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;

/** Let a key do something. Where the focus is in a part that has keys of its own (`data-own-keys`), it is left to that. */
export function key(name, words, action) {
  define(PART, "This page", name, words);
  actions.set(name, action);
}

/** A key that something else listens to: listed in the sheet only. */
export function listed(name, words) {
  fixed.push([name, words]);
}

/** The key of a command as `aria-keyshortcuts` has it. */
export const shortcut = (name) => keyFor(PART, name);

/** Give the page's commands to something else, which does them. */
export function relay(to) {
  relayed = to;
}

/** Do a command of this page; false where there is none. */
export function act(command) {
  const action = actions.get(command);
  if (action && relayed) relayed(command);
  else action?.();
  return Boolean(action);
}

document.addEventListener("keydown", (event) => {
  const name = keyOf(event);
  if (event.defaultPrevented || name === null || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  if (name === "?") help();
  else if (isOff() || event.target.closest("[data-own-keys]") || !act(commandOf(PART, name))) return;
  event.preventDefault();
});

/** Show a dialog; it is gone when it is closed. */
export function dialog(title, ...children) {
  const shown = h("dialog", { "aria-label": title, onclose: () => shown.remove() }, h("h2", {}, title), children);
  document.body.append(shown);
  shown.showModal();
  return shown;
}

const row = (keys, words, ...more) => h("li", {}, h("span", { class: "keys-of" }, keys), h("span", {}, words, more));

/** A command whose key is a button: it takes the next key that is pressed. */
function changeable(part, [command, words], draw) {
  const told = h("span", { class: "bad", role: "alert" });
  const take = (event) => {
    const name = keyOf(event);
    if (event.key === "Tab" || name === null) return;
    event.preventDefault();
    event.stopPropagation();
    const problem = event.key === "Escape" ? null : choose(part, command, name);
    told.textContent = problem ? ` ${problem}` : "";
    if (!problem) draw(`${part} ${command}`);
  };
  const one = button(h("kbd", {}, spelled(keyFor(part, command))), () => {
    if (one.classList.toggle("taking", true)) one.replaceChildren("press a key");
    one.addEventListener("keydown", take);
    one.addEventListener("blur", () => draw(null), { once: true });
  }, { focus: `${part} ${command}`, class: isChosen(part, command) ? "key-button chosen" : "key-button", "aria-label": `${words}: ${spelled(keyFor(part, command))}; change the key` });
  return row(one, words, told);
}

/** The sheet of keys: all parts of this page, each key to be changed. */
export function help() {
  const list = h("div", { class: "sheet" });
  const draw = (focus) => {
    const listing = [...parts].sort(([part]) => (part === PART ? -1 : 1)).map(([part, { title, commands }]) => h("section", {}, h("h3", {}, title),
      h("ul", { class: "keys" }, commands.map((one) => changeable(part, one, draw)), part === PART && [["?", "this sheet"], ...fixed].map(([name, words]) => row(h("kbd", {}, name), words)))));
    list.replaceChildren(...listing);
    if (focus) list.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  };
  draw(null);
  const off = h("input", { type: "checkbox", id: "keys-off", onchange: (event) => localStorage.setItem(OFF, event.target.checked ? "1" : "0") });
  off.checked = isOff();
  const shown = dialog("Keys",
    h("p", { class: "soft" }, "A key is a button: choose it and press another key. Tab, Enter and Space reach everything too. Keys of the films hold while a film has the focus."), list,
    h("p", {}, h("label", {}, off, " Switch single keys off (except ?)")),
    h("p", { class: "actions" }, button("Close", () => shown.close(), { class: "main", autofocus: true }), button("All keys as at first", () => { resetKeys(); draw(null); })));
  shown.classList.add("wide");
}

at("help")?.addEventListener("click", help);
