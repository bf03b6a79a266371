// Images of a study in a page.
//
//     const viewer = await mountViewer(element, { study, csrf });
//     viewer.showFinding("Edema");
//
// `study` is the study's id, or the study as the interface gives it. The viewer only reads: it needs no `csrf`. `source`
// is what was read of the study ahead.

import { made } from "./elements.js";
import { Films } from "./films.js";
import { Source } from "./source.js";

/**
 * Show a study's images in an element: `showFinding(name)`, `hideMaps()`, `showPrior()`, `setBoxes(boxes)`,
 * `markBoxes(keys)`, `showBox(key)`, `destroy()`. `pointed(keys)` and `stepped(by)` are told of boxes.
 */
export async function mountViewer(element, { study, source: given, pointed = () => {}, stepped = () => {} }) {
  const source = given?.open() ?? new Source(study.id ?? study);
  await styled();
  element.replaceChildren(made("p", { class: "rv-empty", role: "status" }, "The images are loading."));
  const list = await source.list();
  source.stopped.signal.throwIfAborted(); // another study took the element meanwhile
  const first = list.images.find((one) => one.kind === "radiograph" && !one.problem && one.view !== "LATERAL");
  if (first) source.words(first.name).catch(() => {}); // on its way while the films are made; they tell of a failure
  const shown = await open(element, source, list, { pointed, stepped });
  const focus = (event) => event.target === element && shown?.focus();
  element.addEventListener("focus", focus);
  return {
    showFinding: (name) => shown?.showFinding(name),
    hasDraft: list.method !== null, // else maps may come yet
    hideMaps: () => shown?.hideMaps(),
    showPrior: () => shown?.showPrior(),
    setBoxes: (boxes) => shown?.setBoxes(boxes),
    markBoxes: (keys) => shown?.markBoxes(keys),
    showBox: (key) => shown?.showBox(key),
    destroy() {
      source.stop();
      element.removeEventListener("focus", focus);
      shown?.destroy();
      element.replaceChildren();
    },
  };
}

async function open(element, source, list, on) {
  if (!list.images.length) {
    element.replaceChildren(made("p", { class: "rv-empty" }, "There is no image of this study that can be shown."));
    return null;
  }
  const films = new Films(element, source, list, on);
  await films.start();
  return films;
}

/** The style sheet, once for the page. */
function styled() {
  const href = new URL("films.css", import.meta.url).href;
  if ([...document.styleSheets].some((sheet) => sheet.href === href)) return Promise.resolve();
  return new Promise((done) => {
    document.head.append(made("link", { rel: "stylesheet", href, onload: done, onerror: done }));
  });
}
