// Macros: an abbreviation that Tab turns into a text, one's own or the site's. Tab then goes from one [placeholder] to the next.

import { ask, me } from "./api.js";
import { button, h } from "./dom.js";
import { dialog } from "./keys.js";

const PLACEHOLDER = /\[[^[\]\n]{1,60}\]/g;
let known = { own: {}, site: {} };

export async function loadMacros() {
  known = await ask("GET", "/macros");
}

const textOf = (word) => known.own[word] ?? known.site[word];

/** The word before the cursor where it is an abbreviation, else null. */
function abbreviation({ value, selectionStart, selectionEnd }) {
  const word = selectionStart === selectionEnd && /\S+$/.exec(value.slice(0, selectionStart))?.[0];
  return word && textOf(word) ? word : null;
}

/** What Tab would put in place of the word before the cursor; null for nothing. */
export function offered(field) {
  const word = abbreviation(field);
  return word && textOf(word);
}

const placeholders = (text) => [...text.matchAll(PLACEHOLDER)].map((found) => [found.index, found.index + found[0].length]);

/** The first placeholder of a text that macros put in and that is not filled in yet; null where there is none. */
export const unfilled = (text, wasExpanded) => (wasExpanded ? text.match(PLACEHOLDER)?.[0] ?? null : null);

/** What Tab does in a field: expand the abbreviation, or go to the next placeholder; false where it leaves the field. */
export function tab(field, { isBack, wasExpanded }) {
  const word = !isBack && abbreviation(field);
  if (word) {
    const text = textOf(word);
    const from = field.selectionStart - word.length;
    field.setRangeText(text, from, field.selectionStart, "end");
    const [first] = placeholders(text);
    if (first) field.setSelectionRange(from + first[0], from + first[1]);
    return "expanded";
  }
  if (!wasExpanded) return false;
  const all = placeholders(field.value);
  const next = isBack ? all.findLast(([, to]) => to <= field.selectionStart) : all.find(([from]) => from >= field.selectionEnd);
  if (!next) return false;
  field.setSelectionRange(...next);
  return "moved";
}

const written = (macros) => Object.entries(macros).map(([word, text]) => `${word}: ${text}`).join("\n");

/** Macros of lines "abbreviation: text". Throws an Error that names the line. */
function read(lines) {
  const macros = {};
  for (const [place, line] of lines.split("\n").entries()) {
    if (!line.trim()) continue;
    const [, word, text] = /^\s*([^\s[\]:]{1,30}):\s*(\S.*)$/.exec(line) ?? [];
    if (!word) throw new Error(`Line ${place + 1}: expected "abbreviation: text".`);
    if (word in macros) throw new Error(`Line ${place + 1}: ${word} is there twice.`);
    macros[word] = text.trim();
  }
  return macros;
}

/** The macros, to be changed: one's own, and for admins the site's. */
export function showMacros() {
  const told = h("p", { role: "alert" });
  const part = (whose, title, mayChange) => {
    const area = h("textarea", { id: `macros-${whose}`, rows: "6", readonly: !mayChange, spellcheck: "false" });
    area.value = written(known[whose]);
    return [h("p", {}, h("label", { for: area.id }, title)), area,
      mayChange && h("p", { class: "actions" }, button("Save", () => save(whose, area), { class: whose === "own" ? "main" : "", "aria-label": `Save ${title}` }))];
  };
  const save = async (whose, area) => {
    told.textContent = "";
    told.className = "";
    try {
      const macros = read(area.value);
      await ask("PUT", `/macros/${whose}`, { macros });
      known = { ...known, [whose]: macros };
      told.textContent = "Saved.";
    } catch (problem) {
      told.className = "bad";
      told.textContent = problem.message;
    }
  };
  const shown = dialog("Macros",
    h("p", { class: "soft" }, "A line for each: abbreviation, colon, text. In the editor, Tab after the abbreviation puts the text in; Tab then goes to the next [placeholder]. “ // ” ends a sentence."),
    part("own", "Yours", true), part("site", "Of this site", me.role === "admin"), told, h("p", {}, button("Close", () => shown.close())));
  shown.classList.add("wide");
}
