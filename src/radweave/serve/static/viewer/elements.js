// Elements of the viewer. Whatever comes from the server goes in as text.

/** An element with attributes (on… are listeners; false, null and undefined are left out) and children. */
export function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== false && child !== null && child !== undefined));
  return element;
}

export const push = (label, action, attributes = {}) => made("button", { type: "button", onclick: action, ...attributes }, label);

/** A button that is on or off. */
export function toggle(label, action, attributes = {}) {
  const button = push(label, () => action(button.getAttribute("aria-pressed") !== "true"), { "aria-pressed": "false", ...attributes });
  return button;
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
