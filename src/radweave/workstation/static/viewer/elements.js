// Elements from values. Whatever comes from outside goes in as text: nothing here reads HTML.

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

/** A button that does something; `focus` names it, so that it has the focus again after it was drawn anew. */
export function push(label, action, { focus, ...attributes } = {}) {
  return made("button", { type: "button", onclick: action, "data-focus": focus, ...attributes }, label);
}

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
