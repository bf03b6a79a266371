// What became of a draft: sentence by sentence, word by word.

import { at, button, h, redraw } from "./dom.js";
import { ask } from "./api.js";
import { canEdit } from "./draft.js";

let base = null;
let isShown = false;
const kept = new Map();

/** Another study is shown. */
export function forgetDifference() {
  base = null;
  kept.clear();
}

/** Words of both texts as [kind, words]: "same", "out", "in", by the longest common sequence. */
export function words(before, after) {
  const old = before.split(/\s+/).filter(Boolean), made = after.split(/\s+/).filter(Boolean);
  const longest = Array.from({ length: old.length + 1 }, () => new Uint16Array(made.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = made.length - 1; j >= 0; j--) {
      longest[i][j] = old[i] === made[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  const parts = [];
  const add = (kind, word) => (parts.at(-1)?.[0] === kind ? parts.at(-1)[1].push(word) : parts.push([kind, [word]]));
  let i = 0, j = 0;
  while (i < old.length || j < made.length) {
    if (i < old.length && j < made.length && old[i] === made[j]) { add("same", old[i]); i++; j++; }
    else if (i < old.length && (j === made.length || longest[i + 1][j] >= longest[i][j + 1])) add("out", old[i++]);
    else add("in", made[j++]);
  }
  return parts;
}

function line(before, after) {
  const parts = words(before, after).map(([kind, all]) => {
    const text = all.join(" ");
    return [kind === "same" ? text : h(kind === "out" ? "del" : "ins", {}, text), " "];
  });
  const kind = !before ? "put in" : !after ? "taken out" : before === after ? "as it was" : "changed";
  return h("li", { class: kind === "as it was" ? "soft" : undefined }, h("span", { class: "kind" }, `${kind}: `), parts);
}

export async function showDifference(page) {
  isShown = true;
  await drawDifference(page);
  at("difference-title")?.focus();
}

export async function drawDifference(page) {
  const { draft } = page.study;
  const head = h("h2", { id: "difference-title", tabindex: "-1" }, "Difference to the model's draft");
  const toggle = button(isShown ? "Hide" : "Show", () => { isShown = !isShown; drawDifference(page); }, { focus: "difference", "aria-expanded": String(isShown) });
  if (!isShown) return redraw(at("difference"), h("div", { class: "row spread" }, head, toggle));
  if (base === null || base > draft.version) base = draft.drafted;
  const { id } = page;
  if (!kept.has(base)) {
    const version = await ask("GET", `/studies/${id}/versions/${base}`);
    if (id !== page.id) return;
    kept.set(base, version);
  }
  const before = new Map(kept.get(base).sentences.map((row) => [row.key, row.text]));
  const after = new Map(draft.sentences.map((row) => [row.key, row.text]));
  // The sentences as they stand now; those that are gone follow the one they followed.
  const order = [...after.keys()];
  let place = -1;
  for (const key of before.keys()) {
    if (after.has(key)) place = order.indexOf(key);
    else order.splice(++place, 0, key);
  }
  const choice = h("select", { id: "difference-base", "data-focus": "difference-base", onchange: (event) => { base = Number(event.target.value); drawDifference(page); } },
    Array.from({ length: draft.version }, (_, one) => h("option", { value: one + 1, selected: one + 1 === base }, one + 1 === draft.drafted ? "the model's draft" : `version ${one + 1}`)));
  redraw(at("difference"), h("div", { class: "row spread" }, head, toggle),
    h("p", { class: "row" }, h("label", { for: "difference-base" }, "Compared with"), choice,
      canEdit(page) && base !== draft.version && button("Go back to it", () => page.restore(base), { focus: "restore" })),
    h("ol", { class: "difference" }, order.map((key) => line(before.get(key) ?? "", after.get(key) ?? ""))));
}
