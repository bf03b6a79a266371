// Elements from values. Whatever comes from the server goes in as text: nothing here reads HTML.

import { made as h, push as button } from "./viewer/elements.js";

export { button, h };

export const at = (id) => document.getElementById(id);

/** Put new children into a place without losing the focus of what is still there. */
export function redraw(place, ...children) {
  const held = place.contains(document.activeElement) ? document.activeElement : null;
  const name = held?.dataset.focus;
  const range = held instanceof HTMLTextAreaElement ? [held.selectionStart, held.selectionEnd] : null;
  place.replaceChildren(...children.flat(Infinity).filter((child) => child !== false && child !== null && child !== undefined));
  if (!name) return;
  const again = place.querySelector(`[data-focus="${CSS.escape(name)}"]`);
  again?.focus({ preventScroll: true });
  if (range && again instanceof HTMLTextAreaElement) again.setSelectionRange(...range);
}

/** Say something to who listens instead of looking. */
export function say(text) {
  const place = at("said");
  place.textContent = "";
  setTimeout(() => { place.textContent = text; }, 50);
}

/** Show a problem at the top of the page until it is closed or another one comes. */
export function alarm(problem, ...more) {
  const words = String(problem?.message ?? problem);
  if (at("alerts").dataset.words === words && at("alerts").firstChild) return; // it is being read
  at("alerts").dataset.words = words;
  const close = button("Close", () => at("alerts").replaceChildren());
  at("alerts").replaceChildren(h("div", { class: "alert row spread" }, h("div", {}, words, more), close));
}

export const clearAlarm = () => at("alerts").replaceChildren();

const CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A time as this place and language write it. */
export function time(text) {
  return h("time", { datetime: text, title: text }, CLOCK.format(new Date(text)));
}

export const percent = (value) => (value === null || value === undefined ? "unknown" : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);
