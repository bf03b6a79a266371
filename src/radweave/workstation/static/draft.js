// The draft in sections, each sentence editable where it stands. What was typed is never lost to someone else's edit.

import { ask } from "./api.js";
import { alarm, at, button, clearAlarm, h, redraw, say } from "./dom.js";
import { key, listed, shortcut } from "./keys.js";
import { isOthers } from "./lock.js";
import { offered, showMacros, tab, unfilled } from "./macros.js";
import { about } from "./marks.js";
import { drawTemplate } from "./template.js";
import { against, margin, origin, places, probability, verdict, why } from "./words.js";

export const SECTIONS = ["indication", "technique", "comparison", "findings", "impression"];
const title = (section) => section[0].toUpperCase() + section.slice(1);
const mostCharacters = Number(at("study").dataset.mostCharacters);

/** The one editor that is open: {op, key, after, section, text, was, above, wasExpanded}. It stays until it is saved or cancelled. */
let open = null;
let current = null;
/** While a pointer is down nothing is chosen: what would move away under it is not clicked. */
let isPressed = false;
document.addEventListener("pointerdown", () => { isPressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => { isPressed = false; }, true);

export const canEdit = ({ study }) => (study.state === "drafted" || study.state === "edited") && !isOthers({ study });
export const hasUnsaved = () => open !== null && open.text !== open.was;

/** Boxes of the sentences' findings, each with the key of its sentence. */
export const boxesOf = ({ study }) => (study?.draft?.sentences ?? []).flatMap(({ key: name, details }) => (details.places ?? []).flatMap(({ finding, boxes, uncertain }) =>
  boxes.map(({ image, box }) => ({ key: name, finding: uncertain ? `${finding}, left open` : finding, image: String(image), box }))));

const hasBox = ({ details }) => (details.places ?? []).some(({ boxes }) => boxes.length);

/** Another study is shown. */
export function forgetDraft() {
  [open, current] = [null, null];
}

export function drawDraft(page) {
  const { study } = page;
  drawTools(page);
  if (!study.draft) return redraw(at("draft"), waiting(study));
  const rows = study.draft.sentences;
  if (!rows.some((row) => row.key === current)) current = null;
  const given = page.evidence?.evidence.study ?? {};
  settle(rows);
  const shown = SECTIONS.map((section) => drawSection(page, section, rows.filter((row) => row.section === section), given[section]));
  const wasOpen = at("template")?.open ?? false;
  const offered = canEdit(page) && drawTemplate(page.template, rows, {
    take: (section, texts) => insertLines(page, section, texts), write: (section, text) => insert(page, section, last(rows, section), text),
  });
  if (offered) offered.open = wasOpen;
  redraw(at("draft"), shown, open && !canEdit(page) && drawKept(), adding(page, rows), offered);
}

function waiting({ state }) {
  if (state === "refused") return h("p", {}, "There is none: the study was refused.");
  return h("p", { role: "status" }, state === "drafting" ? "The draft is being written." : "The study waits for its draft.");
}

function drawTools(page) {
  const { study } = page;
  if (!study.draft || !canEdit(page)) return redraw(at("draft-tools"));
  redraw(at("draft-tools"), button("Macros", showMacros, { focus: "macros", "aria-keyshortcuts": shortcut("q") }), button("Undo", () => undo(page), {
    focus: "undo", disabled: study.draft.undo === null, "aria-keyshortcuts": shortcut("z"),
  }));
}

function drawSection(page, section, rows, given) {
  const here = open?.op === "insert" && open.section === section;
  if (!rows.length && !given && !here) return null;
  const first = here && open.after === null && canEdit(page) && drawEditor(page);
  return h("div", { class: "part", role: "group", "aria-labelledby": `part-${section}` },
    h("h3", { id: `part-${section}` }, title(section)),
    given && h("p", { class: "given" }, given, h("span", { class: "soft" }, " – came with the study")),
    first && h("div", { class: "sentence" }, first),
    h("ol", { class: "sentences" }, rows.map((row) => drawSentence(page, row))));
}

function drawSentence(page, row) {
  const isOpen = open?.op === "replace" && open.key === row.key;
  const isFollowed = open?.op === "insert" && open.after === row.key;
  const mustLook = row.flagged && !row.looked_at;
  const classes = ["sentence", row.flagged && "flagged", mustLook && "unseen", current === row.key && "current"].filter(Boolean);
  return h("li", {
    class: classes.join(" "), ...about((row.details.claims ?? []).map(({ name }) => name), [...new Set((row.details.claims ?? []).flatMap(({ agree, differ }) => [...agree, ...differ]))]), "data-key": row.key, "data-focus": `sentence-${row.key}`, tabindex: "-1",
    onfocusin: () => !isPressed && select(row.key), onclick: () => select(row.key), ondblclick: () => canEdit(page) && !isOpen && edit(page, row.key),
  },
  margin(row),
  isOpen && canEdit(page) ? drawEditor(page) : h("p", { class: "words" }, row.text, hasBox(row) && h("span", { class: "boxed", role: "img", "aria-label": "marked by a box", title: "A box marks it on the image" }), row.flagged && row.looked_at && h("span", { class: "seen", title: "You looked at it" }, " ✓")),
  mustLook && canEdit(page) && !isOpen && h("p", { class: "actions" }, button("I looked at it", () => look(page, row.key), { focus: `look-${row.key}`, class: "main look" })),
  h("div", { class: "evidence" }, h("p", { class: "facts" }, verdict(row), against(row), places(row), h("span", {}, probability(row)), h("span", {}, origin(row)),
    row.flagged && row.looked_at && h("span", { class: "seen" }, "you looked at it"),
    mustLook && row.lookers.length > 0 && h("span", { class: "soft" }, `looked at by ${row.lookers.join(", ")}; not by you`)),
  h("div", { class: "foot" }, canEdit(page) && !isOpen && h("p", { class: "actions" },
    button("Edit", () => edit(page, row.key), { focus: `edit-${row.key}` }),
    button("Add after", () => insert(page, row.section, row.key), { focus: `add-${row.key}` }),
    button("Remove", () => remove(page, row.key), { focus: `remove-${row.key}` })),
  hasBox(row) && h("p", { class: "actions" }, button("Show box", () => page.viewer?.showBox(row.key), { focus: `box-${row.key}` })), why(row))),
  isFollowed && canEdit(page) && drawEditor(page));
}

/** What was typed into a sentence that is not there any more becomes a new one, where the reader saves it. */
function settle(rows) {
  const place = open && (open.op === "replace" ? open.key : open.after);
  if (!open || place === null || rows.some((row) => row.key === place)) return;
  const above = open.above.findLast((key) => rows.some((row) => row.key === key && row.section === open.section)) ?? null;
  open = { op: "insert", section: open.section, after: above, text: open.text, was: "", above: open.above };
}

function drawKept() {
  return h("div", { class: "alert" }, h("label", { for: "kept" }, "The draft cannot be changed any more. What you typed:"),
    h("textarea", { id: "kept", readonly: true }, open.text));
}

function adding(page, rows) {
  if (!canEdit(page)) return null;
  const missing = SECTIONS.filter((section) => !rows.some((row) => row.section === section));
  return h("p", { class: "actions" }, h("span", { class: "soft" }, "Add to: "), missing.map((section) =>
    button(title(section), () => insert(page, section, null), { focus: `section-${section}`, "aria-label": `Add to ${section}` })));
}

/** Sentences of a text that macros put together: " // " stands between two. */
const sentencesIn = (text) => text.split(/\s*\/\/\s*|\n+/).map((one) => one.trim()).filter(Boolean);

function drawEditor(page) {
  const hint = h("p", { class: "soft hint", "aria-live": "polite" });
  const area = h("textarea", {
    "aria-label": open.op === "replace" ? "The sentence" : "The new sentence", "data-focus": "editor", maxlength: mostCharacters,
    oninput: (event) => {
      open.text = event.target.value;
      grow(event.target);
      const text = offered(event.target);
      hint.textContent = text ? `Tab: ${text}` : "";
    },
    onkeydown: (event) => {
      if (event.key === "Tab") {
        const done = tab(event.target, { isBack: event.shiftKey, wasExpanded: open.wasExpanded });
        if (!done) return;
        open.wasExpanded ||= done === "expanded";
        if (done === "expanded") event.target.dispatchEvent(new Event("input"));
      } else if (event.key === "Escape") cancel(page);
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(page);
      else return;
      event.preventDefault();
    },
  });
  area.value = open.text;
  requestAnimationFrame(() => grow(area));
  return h("div", { class: "editor" }, area, hint, h("p", { class: "actions" },
    button("Save", () => save(page), { class: "main", focus: "save", "aria-keyshortcuts": "Control+Enter" }),
    button("Cancel", () => cancel(page), { focus: "cancel", "aria-keyshortcuts": "Escape" })));
}

function grow(area) {
  area.rows = 1;
  while (area.scrollHeight > area.clientHeight + 2 && area.rows < 20) area.rows += 1;
}

function select(name) {
  if (current === name) return;
  current = name;
  for (const one of document.querySelectorAll(".sentence.current")) one.classList.remove("current");
  item(name)?.classList.add("current");
}

const item = (name) => at("draft").querySelector(`li[data-key="${name}"]`);

/** Whether another editor may open: one with words in it is saved or cancelled first. */
function mayOpen() {
  if (!hasUnsaved()) return true;
  alarm("Save or cancel the sentence that you are writing first.");
  at("draft").querySelector('[data-focus="editor"]')?.focus();
  return false;
}

function show(page, editor) {
  const keys = page.study.draft.sentences.map((row) => row.key);
  open = { ...editor, above: keys.slice(0, keys.indexOf(editor.op === "replace" ? editor.key : editor.after) + 1) };
  drawDraft(page);
  const area = at("draft").querySelector('[data-focus="editor"]');
  area?.focus();
  area?.setSelectionRange(area.value.length, area.value.length);
}

function edit(page, name) {
  const row = page.study.draft.sentences.find((one) => one.key === name);
  if (row && mayOpen()) show(page, { op: "replace", key: name, section: row.section, text: row.text, was: row.text });
}

function insert(page, section, after, text = "") {
  if (mayOpen()) show(page, { op: "insert", section, after, text, was: text });
}

const last = (rows, section) => rows.findLast((row) => row.section === section)?.key ?? null;

/** Put lines of a template at the end of their section: the last one first, each after the same sentence. */
async function insertLines(page, section, texts) {
  if (!mayOpen()) return;
  const after = last(page.study.draft.sentences, section);
  const edits = texts.toReversed().map((text) => ({ op: "insert", after, section, text }));
  if (await changed(page, edits)) focusSentence(newest(page));
}

function cancel(page) {
  const back = open.op === "replace" ? `edit-${open.key}` : open.after === null ? `section-${open.section}` : `add-${open.after}`;
  open = null;
  clearAlarm();
  drawDraft(page);
  at("draft").querySelector(`[data-focus="${back}"]`)?.focus();
}

async function save(page) {
  const text = open.text.trim();
  const { op, key: name, after, section, was } = open;
  if (!text) return alarm("The sentence is empty. Cancel, or remove it.");
  if (text === was.trim()) return cancel(page);
  const left = unfilled(text, open.wasExpanded);
  if (left) return alarm(`Fill in ${left} first, or take it out.`);
  const [first, ...more] = open.wasExpanded ? sentencesIn(text) : [text];
  const sent = op === "replace" ? { op, key: name, text: first } : { op, after, section, text: first };
  // Each goes in after the same sentence, so the last one first; a new first one last of all.
  const rest = more.toReversed().map((one) => ({ op: "insert", after: op === "replace" ? name : after, section, text: one }));
  const isKept = await changed(page, [...rest, sent], () => { open = null; });
  if (isKept) focusSentence(op === "replace" ? name : newest(page));
}

const newest = (page) => Math.max(...page.study.draft.sentences.map((row) => row.key));

/** Send edits. Where someone else was faster, show theirs and keep what is typed here. */
async function changed(page, edits, done = () => {}) {
  try {
    const before = open;
    done();
    try {
      await page.change(edits);
    } catch (problem) {
      open = before;
      throw problem;
    }
    clearAlarm();
    say(`Saved as version ${page.study.version}.`);
    return true;
  } catch (problem) {
    if (problem.status !== 409) {
      alarm(problem);
      drawDraft(page);
      return false;
    }
    await page.reload().catch(() => {});
    drawDraft(page);
    alarm(canEdit(page)
      ? `Not saved: someone else changed the draft meanwhile (version ${page.study.version}, by ${page.study.draft.author_name ?? "someone"}). Theirs is shown now. ${open ? "What you typed is still in its field; save it again to put it over theirs." : "Do it again if it still fits."}`
      : `Not saved: the draft was ${page.study.state} meanwhile.`);
    at("draft").querySelector('[data-focus="editor"]')?.focus();
    return false;
  }
}

function focusSentence(name) {
  select(name);
  item(name)?.focus();
}

async function look(page, name) {
  try {
    page.study.draft = await ask("POST", `/studies/${page.id}/looked`, { version: page.study.version, sentences: [name] });
    await page.reload();
    focusSentence(name);
  } catch (problem) {
    if (problem.status !== 409) return alarm(problem);
    await page.reload().catch(() => {});
    alarm("The draft was changed meanwhile. Look at the sentence as it is now.");
  }
}

async function remove(page, name) {
  if (!mayOpen()) return;
  open = null;
  const rows = page.study.draft.sentences;
  const place = rows.findIndex((row) => row.key === name);
  const beside = rows[place + 1] ?? rows[place - 1];
  if (await changed(page, [{ op: "remove", key: name }]) && beside) focusSentence(beside.key);
}

async function undo(page) {
  if (!canEdit(page) || page.study.draft.undo === null || !mayOpen()) return;
  await changed(page, [{ op: "restore", version: page.study.draft.undo }]);
}

/** Put a sentence of a recalled case after the current one, or at the end of the findings. */
export async function insertRecalled(page, number, text) {
  if (!canEdit(page) || !mayOpen()) return;
  const rows = page.study.draft.sentences;
  const after = current ?? rows.findLast((row) => row.section === "findings")?.key ?? null;
  if (await changed(page, [{ op: "insert", after, text, recalled: number }])) focusSentence(newest(page));
}

export function keysOfDraft(page) {
  const rows = () => page.study?.draft?.sentences ?? [];
  const move = (step) => {
    const place = rows().findIndex((row) => row.key === current);
    const next = rows()[place < 0 ? 0 : Math.min(rows().length - 1, Math.max(0, place + step))];
    if (next) focusSentence(next.key);
  };
  const onCurrent = (action) => () => {
    const row = rows().find((one) => one.key === current);
    if (row && canEdit(page)) action(row);
  };
  key("j", "next sentence", () => move(1));
  key("k", "sentence before", () => move(-1));
  key("n", "next flagged sentence that you have not looked at", () => {
    const unseen = rows().filter((row) => row.flagged && !row.looked_at);
    const place = rows().findIndex((row) => row.key === current);
    const next = unseen.find((row) => rows().indexOf(row) > place) ?? unseen[0];
    if (next) focusSentence(next.key);
  });
  const toBox = (step) => {
    const boxed = rows().filter(hasBox);
    const place = rows().findIndex((row) => row.key === current);
    const next = step > 0 ? boxed.find((row) => rows().indexOf(row) > place) ?? boxed[0] : boxed.findLast((row) => rows().indexOf(row) < place) ?? boxed.at(-1);
    if (!next) return;
    focusSentence(next.key);
    page.viewer?.showBox(next.key);
  };
  key("b", "next sentence with a box, and its box", () => toBox(1));
  key("B", "sentence with a box before, and its box", () => toBox(-1));
  key("l", "I looked at the sentence", onCurrent((row) => row.flagged && !row.looked_at && look(page, row.key)));
  key("e", "edit the sentence", onCurrent((row) => edit(page, row.key)));
  key("a", "add a sentence after it, or to the findings", () => {
    const row = rows().find((one) => one.key === current);
    if (page.study?.draft && canEdit(page)) insert(page, row?.section ?? "findings", row?.key ?? last(rows(), "findings"));
  });
  key("x", "remove the sentence", onCurrent((row) => remove(page, row.key)));
  key("q", "macros", showMacros);
  key("z", "undo", () => page.study?.draft && undo(page));
  listed("Tab", "expand a macro, then the next placeholder");
  listed("Ctrl Enter", "save what is written; in a dialog, sign or send");
  listed("Ctrl Shift Enter", "where a report is signed: sign, then the next study");
  listed("Esc", "leave it");
}
