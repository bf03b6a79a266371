// Who did what with a study.

import { ask } from "./api.js";
import { alarm, at, button, h, redraw, time } from "./dom.js";

let isShown = false;

export async function drawHistory(page) {
  const head = h("h2", { id: "history-title" }, "What was done");
  const toggle = button(isShown ? "Hide" : "Show", () => { isShown = !isShown; drawHistory(page); }, { focus: "history", "aria-expanded": String(isShown) });
  const top = h("div", { class: "row spread" }, head, toggle);
  if (!isShown) return redraw(at("history"), top);
  try {
    const { id } = page;
    const { entries } = await ask("GET", `/studies/${id}/log?limit=200`);
    if (id === page.id) redraw(at("history"), top, table(entries));
  } catch (problem) {
    alarm(problem);
  }
}

/** Entries of the log; with the study's number where they are of more than one. */
export function table(entries, { withStudy = false } = {}) {
  const heads = ["Entry", "When", "Who", "What", ...(withStudy ? ["Study"] : []), "Details", "Hash"];
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Entries" }, h("table", { class: "entries" },
    h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, entries.map((one) => h("tr", {},
      h("td", { class: "number" }, String(one.number)), h("td", {}, time(one.time)), h("td", {}, one.user_name ?? "the server"), h("td", {}, one.action),
      withStudy && h("td", {}, one.study && h("a", { href: `/studies/${one.study}` }, one.study.slice(0, 8))),
      h("td", { class: "details" }, details(one.details)), h("td", {}, h("code", { title: one.hash }, one.hash.slice(0, 8))))))));
}

function details(values) {
  return Object.entries(values).map(([name, value]) => `${name}: ${typeof value === "object" ? flat(value) : short(value)}`).join("; ");
}

const flat = (value) => (Array.isArray(value) ? value.join(", ") : Object.entries(value ?? {}).map(([name, one]) => `${name} ${short(one)}`).join(", "));
const short = (value) => (/^[0-9a-f]{64}$/.test(value) ? `${value.slice(0, 12)}…` : String(value));
