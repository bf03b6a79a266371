// Which key does what. A command is named by its key by default; the keys that a user chose are remembered in the browser.

const user = document.querySelector('meta[name="user"]')?.content ?? "";
const PLACE = `radweave.keys.${user}`;
const SPELLED = {
  " ": "Space", ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", PageUp: "Page ↑", PageDown: "Page ↓", Backspace: "Back", Delete: "Del", Escape: "Esc",
};
/** Keys that have their meaning in every browser, or on every page here. */
const RESERVED = new Set(["?", "Tab", "Shift Tab", "Enter", "Shift Enter", "Escape", "F1", "F5", "F11", "F12"]);
const MODIFIERS = new Set(["Shift", "Control", "Alt", "AltGraph", "Meta", "CapsLock", "Dead", "Process", "Unidentified"]);

/** Titles and commands of the parts of a page: [[command, words], ...]. */
export const parts = new Map();
const listeners = new Set();
let chosen = read();

function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    return kept && typeof kept === "object" ? kept : {};
  } catch {
    return {}; // no storage, or not ours: the keys are those by default
  }
}

function keep() {
  try {
    localStorage.setItem(PLACE, JSON.stringify(chosen));
  } catch {
    // No storage: it holds for this page.
  }
  for (const changed of listeners) changed();
}

window.addEventListener("storage", (event) => {
  if (event.key !== PLACE) return;
  chosen = read();
  for (const changed of listeners) changed();
});

/** Add a command to a part of the page. */
export function define(part, title, command, words) {
  if (!parts.has(part)) parts.set(part, { title, commands: [] });
  const { commands } = parts.get(part);
  if (!commands.some(([known]) => known === command)) commands.push([command, words]);
}

/** Call a function whenever keys change; returns what ends it. */
export function onChange(changed) {
  listeners.add(changed);
  return () => listeners.delete(changed);
}

export const spelled = (key) => key.split(/(?<=^Shift) /).map((one) => SPELLED[one] ?? one).join(" ");

/** The name of the key of an event; null where it is no key of its own, or comes with Ctrl, Alt or Meta. */
export function keyOf({ key, shiftKey, ctrlKey, metaKey, altKey }) {
  if (ctrlKey || metaKey || altKey || MODIFIERS.has(key)) return null;
  return key.length > 1 && shiftKey ? `Shift ${key}` : key;
}

export const keyFor = (part, command) => chosen[part]?.[command] ?? command;
export const isChosen = (part, command) => keyFor(part, command) !== command;

/** The command of a key in a part of the page; null where it has none. */
export function commandOf(part, key) {
  const own = chosen[part] ?? {};
  return Object.keys(own).find((command) => own[command] === key) ?? (key in own ? null : key);
}

/** Give a command a key. Returns why not, or null. */
export function choose(part, command, key) {
  if (RESERVED.has(key)) return `${spelled(key)} keeps its meaning. Take another key.`;
  const other = parts.get(part).commands.find(([known]) => known !== command && keyFor(part, known) === key);
  if (other) return `${spelled(key)} is taken: ${other[1]}.`;
  const { [command]: _, ...rest } = chosen[part] ?? {};
  chosen = { ...chosen, [part]: key === command ? rest : { ...rest, [command]: key } };
  keep();
  return null;
}

export function resetKeys() {
  chosen = {};
  keep();
}
