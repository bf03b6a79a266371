// Elements of the viewer. Whatever comes from the server goes in as text.

import { button as push, h as made } from "../dom.js";

export { made, push };

/** A button that is on or off. */
export function toggle(label, action, attributes = {}) {
  const made = push(label, () => action(made.getAttribute("aria-pressed") !== "true"), { "aria-pressed": "false", ...attributes });
  return made;
}

export function choice(label, options, action, attributes = {}) {
  const select = made("select", { "aria-label": label, onchange: () => action(select.value), ...attributes });
  fill(select, options);
  return select;
}

/** Give a list new entries, as [value, words]. */
export function fill(select, options) {
  select.replaceChildren(...options.map(([value, words]) => made("option", { value }, words)));
}

/** A table of keys, for who asks for it. */
export function keysTable(keys) {
  return made("details", { class: "rv-help" }, made("summary", {}, "Keys"),
    made("dl", {}, keys.map(([names, words]) => [made("dt", {}, names.map((name) => made("kbd", {}, name))), made("dd", {}, words)])));
}

/** The style sheet, once for the page. */
export function styled() {
  const href = new URL("viewer.css", import.meta.url).href;
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) return Promise.resolve();
  return new Promise((done) => {
    document.head.append(made("link", { rel: "stylesheet", href, onload: done, onerror: done }));
  });
}
