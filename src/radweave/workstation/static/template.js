// What the loaded template offers for each section of the draft: its headings, and the texts that they begin with.

import { ask } from "./api.js";
import { button, h } from "./dom.js";

export const loadTemplate = async () => (await ask("GET", "/template")).template;

const wordsOf = ({ heading, text }) => (heading && text ? `${heading}: ${text}` : heading ? `${heading}: ` : text);

/** Lines that are not in the draft yet; `take` gets (section, texts), `write` (section, beginning). */
export function drawTemplate(template, rows, { take, write }) {
  if (!template) return null;
  const parts = template.sections.map(({ section, lines }) => {
    const said = new Set(rows.filter((row) => row.section === section).map((row) => row.text));
    const left = lines.filter((line) => !said.has(wordsOf(line).trim()));
    return left.length > 0 && offer(section, left, { take, write });
  }).filter(Boolean);
  return parts.length > 0 && h("details", { class: "why", id: "template" }, h("summary", { "data-focus": "template" }, `Template: ${template.title || "without a title"}`), parts);
}

function offer(section, lines, { take, write }) {
  const whole = lines.filter((line) => line.text);
  return h("div", { role: "group", "aria-label": `Template of ${section}` },
    h("p", { class: "row" }, h("b", {}, section[0].toUpperCase() + section.slice(1)),
      whole.length > 1 && button("Insert all", () => take(section, whole.map(wordsOf)), { "aria-label": `Insert all of ${section}` })),
    h("ul", { class: "lines" }, lines.map((line) => h("li", {}, h("span", {}, wordsOf(line)),
      line.text ? button("Insert", () => take(section, [wordsOf(line)]), { "aria-label": `Insert: ${wordsOf(line)}` })
        : button("Write", () => write(section, wordsOf(line)), { "aria-label": `Write: ${wordsOf(line)}` })))));
}
