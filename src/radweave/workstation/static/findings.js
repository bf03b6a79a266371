// What the classifier says of each finding, and the recalled cases side by side.

import { at, button, h, percent, redraw } from "./dom.js";
import { canEdit } from "./draft.js";
import { about as marked } from "./marks.js";

const SAID = { positive: "affirmed", negative: "denied", uncertain: "left open", blank: "not mentioned" };
let about = null;

/** Another study is shown. */
export const forgetFindings = () => { about = null; };

/** Findings with what speaks for them; the ones that ask for a look come first. */
export function drawFindings(page) {
  const maps = page.evidence?.evidence.attention_maps ?? {};
  const rows = [...page.study.findings].sort((one, other) => weight(other) - weight(one));
  const shown = rows.map((row) => h("tr", { class: row.flag ? "flag" : undefined, ...marked([row.name]) },
    h("th", { scope: "row" }, row.name),
    h("td", { class: "number" }, bar(row), percent(row.probability)),
    h("td", { class: "number" }, percent(row.threshold)),
    h("td", {}, SAID[row.said] ?? row.said),
    h("td", {}, row.flag && h("b", { class: "bad" }, "! ", row.flag), row.flag && row.experience && h("br"),
      h("span", { class: "soft" }, row.experience ?? (row.probability === null ? "the model gives no probability" : "not calibrated"))),
    h("td", {}, maps[row.name] ? button("Map", () => showMap(page, row.name), { focus: `map-${row.name}`, "aria-label": `Map of ${row.name}` }) : h("span", { class: "soft" }, "none")),
    h("td", {}, recalledOf(page, row))));
  redraw(at("findings"), h("h2", { id: "findings-title" }, "Findings"),
    h("p", { class: "soft" }, "From its threshold on the classifier takes a finding to be there. A map says where the model looked; it is not a lesion's outline."),
    rows.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of findings" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Finding", "Probability", "Threshold", "The model's draft", "What that is worth", "Map", "Recalled cases"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, shown))) : h("p", {}, "The model names no findings."));
}

const weight = (row) => (row.flag ? 10 : 0) + (row.probability ?? -1) / (row.threshold || 1);

function bar({ probability, threshold }) {
  if (probability === null) return null;
  const name = "http://www.w3.org/2000/svg";
  const make = (tag, attributes) => {
    const element = document.createElementNS(name, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const drawn = make("svg", { viewBox: "0 0 100 12", class: "bar", "aria-hidden": "true" });
  drawn.append(make("rect", { class: "ground", width: 100, height: 12 }), make("rect", { class: "value", width: 100 * probability, height: 12 }),
    make("line", { class: "threshold", x1: 100 * threshold, x2: 100 * threshold, y1: 0, y2: 12 }));
  return drawn;
}

function showMap(page, name) {
  page.viewer?.showFinding(name);
  at("viewer").focus();
  at("viewer").scrollIntoView({ block: "nearest" });
}

function recalledOf(page, row) {
  const said = (row.recalled ?? []).filter((one) => one.says !== "not mentioned");
  const words = ["affirmed", "denied", "left open"].map((state) => [said.filter((one) => one.says === state).length, state]).filter(([count]) => count);
  if (!words.length) return h("span", { class: "soft" }, "do not mention it");
  const label = words.map(([count, state]) => `${count} ${state}`).join(", ");
  return button(label, () => compare(page, row.name), { focus: `cases-${row.name}`, "aria-label": `${label}: recalled cases about ${row.name}` });
}

function compare(page, name) {
  about = name;
  page.drawRecalled();
  at("recalled").querySelector("h2").focus();
}

const sentencesOf = (text) => text.split(/(?<=[.!?])\s+(?=[A-Z])/).filter(Boolean);

export function drawRecalled(page, { insert }) {
  page.drawRecalled = () => drawRecalled(page, { insert });
  const cases = page.evidence?.evidence.recalled ?? [];
  const row = page.study.findings.find((one) => one.name === about);
  if (!cases.length) return redraw(at("recalled"));
  const cards = cases.map((one, place) => {
    const number = place + 1;
    const says = row?.recalled?.find((other) => other.number === number)?.says;
    const scores = Object.entries(one.scores ?? {}).map(([name, value]) => `${name} ${Number(value).toPrecision(3)}`).join(", ");
    return h("article", { class: "card", "aria-label": `Recalled case ${number}`, ...marked([], [number]) },
      h("h3", {}, `Case ${number}: ${one.study_id}`),
      h("p", { class: "soft" }, [one.kind, one.for && `for ${one.for}`, scores].filter(Boolean).join("; ")),
      says && h("p", {}, h("b", {}, `${about}: ${says}`)),
      one.text ? h("ul", { class: "lines" }, sentencesOf(one.text).map((text, line) => h("li", {}, h("span", {}, text), " ",
        canEdit(page) && button("Insert", () => insert(number, text), { focus: `insert-${number}-${line}`, "aria-label": `Insert: ${text}` })))) : h("p", { class: "soft" }, "Without a text."));
  });
  redraw(at("recalled"), h("h2", { id: "recalled-title", tabindex: "-1" }, about ? `Recalled cases, and what they say of ${about}` : "Recalled cases"),
    h("p", { class: "soft" }, "Training studies that the model found alike. A sentence goes in after the one that is chosen in the draft."),
    h("div", { class: "cards" }, cards));
}
