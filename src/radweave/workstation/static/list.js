// The work list: what waits, what is drafted, what was refused and why. It looks again every two seconds.

import { ask, repeat } from "./api.js";
import { alarm, at, button, clearAlarm, h, redraw, say, time } from "./dom.js";
import "./frame.js";
import { key, listed } from "./keys.js";
import { chip, STATES } from "./states.js";
import { chooseFiles } from "./upload.js";
import { ageAndSex, dateOf } from "./viewer/patient.js";

const SIZE = 50;
const KEPT = "radweave.list";
const wanted = { search: "", state: "", priority: "", holder: "", modality: "", body_part: "", since: "", until: "", offset: 0, sort: "created", descending: true, ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") };
const FILTERS = ["state", "priority", "holder", "modality", "body_part", "since", "until"];
const DAYS = ["since", "until"];
const rows = new Map();
let newest = 0;
let isLost = false;

async function look() {
  const asked = ++newest;
  const query = new URLSearchParams({ offset: wanted.offset, limit: SIZE });
  if (wanted.search) query.set("search", wanted.search);
  for (const name of FILTERS) if (wanted[name]) query.set(name, DAYS.includes(name) ? wanted[name].replaceAll("-", "") : wanted[name]);
  query.set("sort", wanted.sort);
  query.set("descending", wanted.descending);
  sessionStorage.setItem(KEPT, JSON.stringify({ ...Object.fromEntries(FILTERS.map((name) => [name, wanted[name]])), sort: wanted.sort, descending: wanted.descending }));
  let found;
  try {
    found = await ask("GET", `/studies?${query}`);
  } catch (problem) {
    if (asked === newest) alarm(problem);
    isLost = true;
    throw problem;
  }
  if (isLost) clearAlarm();
  isLost = false;
  if (asked !== newest) return; // another question came in between
  drawStates(found.counts);
  drawColumns();
  drawRows(found.studies);
  drawPaging(found);
}

function drawStates(counts) {
  const all = Object.values(counts).reduce((sum, one) => sum + one, 0);
  const one = (state, label, count) => button([label, " ", h("b", {}, String(count))], () => choose(state), {
    focus: `state-${state}`, "aria-pressed": String(wanted.state === state), class: "state-choice",
  });
  redraw(at("states"), one("", "All", all), Object.entries(STATES).map(([state, { label }]) => one(state, label, counts[state])));
}

function choose(state) {
  wanted.state = state;
  wanted.offset = 0;
  look().catch(() => {});
}

const PRIORITIES = ["stat", "high", "routine", "low"];

/** The priority as a choice that changes it. */
function priorityOf(study) {
  const options = PRIORITIES.map((one) => h("option", { value: one, selected: one === study.priority }, one));
  return h("select", { "aria-label": `Priority of ${study.name}`, "data-focus": `priority-${study.id}`, class: `priority-${study.priority}`,
    onchange: ({ target }) => setPriority(study, target.value) }, options);
}

async function setPriority(study, priority) {
  try {
    await ask("PUT", `/studies/${study.id}/priority`, { priority });
  } catch (problem) {
    alarm(problem);
  }
  look().catch(() => {});
}

/** Columns as [words, what they sort by, cell]. */
const COLUMNS = [
  ["Study", "name", null],
  ["Patient", "patient_name", ({ headers }) => [h("bdi", {}, headers.patient_name), headers.patient_id && h("span", { class: "soft" }, ` ${headers.patient_id}`)]],
  ["Age, sex", "patient_age", ({ headers }) => ageAndSex(headers)],
  ["Accession", "accession_number", ({ headers }) => headers.accession_number],
  ["Modality", "modality", ({ headers }) => headers.modality],
  ["Body part", "body_part_examined", ({ headers }) => headers.body_part_examined],
  ["Date", "study_date", ({ headers }) => dateOf(headers.study_date)],
  ["Priority", "priority", priorityOf],
  ["In hand", "holder", ({ holder }) => holder && (holder.is_own ? "you" : holder.user)],
  ["State", "state", (study) => [chip(study.state), study.drafted_anyway && h("p", { class: "reason" }, `drafted although refused (${study.drafted_anyway})`)]],
  ["Received", "created", (study) => time(study.created)],
];

function drawColumns() {
  const heads = COLUMNS.map(([words, name]) => {
    const isSorted = wanted.sort === name;
    return h("th", { scope: "col", "aria-sort": isSorted ? (wanted.descending ? "descending" : "ascending") : "none" },
      button([words, isSorted && h("span", { "aria-hidden": "true" }, wanted.descending ? " ▼" : " ▲")], () => sortBy(name), { focus: `sort-${name}`, class: "head" }));
  });
  redraw(at("columns"), heads, h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Actions")));
}

function sortBy(name) {
  wanted.descending = wanted.sort === name ? !wanted.descending : ["created", "study_date", "priority"].includes(name);
  wanted.sort = name;
  wanted.offset = 0;
  look().catch(() => {});
}

function drawRows(studies) {
  const body = at("list").tBodies[0];
  const held = body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const shown = studies.map((study) => {
    const kept = rows.get(study.id);
    const holder = JSON.stringify([study.holder?.user, study.priority]);
    const same = kept && kept.changed === study.changed && kept.state === study.state && kept.holder === holder;
    const row = same ? kept.row : drawRow(study);
    if (kept && kept.state !== study.state) say(`${study.name}: ${STATES[study.state].label}`);
    rows.set(study.id, { row, changed: study.changed, state: study.state, holder });
    return row;
  });
  if (shown.length === body.children.length && shown.every((row, place) => row === body.children[place])) return;
  body.replaceChildren(...shown);
  if (held) body.querySelector(`[data-focus="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}

function drawRow(study) {
  const isQueued = study.state === "waiting" || study.state === "drafting";
  return h("tr", { "data-study": study.id, "data-state": study.state },
    h("th", { scope: "row" },
      h("a", { href: `/studies/${study.id}`, class: "study-link", "data-focus": `open-${study.id}` }, study.name),
      study.reason && h("p", { class: "reason" }, study.reason)),
    COLUMNS.slice(1).map(([, , cell]) => h("td", {}, cell(study))),
    h("td", {}, isQueued && button("Cancel", () => cancel(study), { focus: `cancel-${study.id}`, "aria-label": `Cancel ${study.name}` })));
}

async function cancel(study) {
  try {
    await ask("POST", `/studies/${study.id}/cancel`);
  } catch (problem) {
    alarm(problem);
  }
  look().catch(() => {});
}

function drawPaging({ total, offset, studies }) {
  at("empty").hidden = total > 0;
  at("empty").textContent = wanted.search || FILTERS.some((name) => wanted[name]) ? "No study fits." : "No study yet. Add one above.";
  at("paging").hidden = total <= SIZE;
  at("range").textContent = total ? `${offset + 1} to ${offset + studies.length} of ${total}` : "";
  at("newer").disabled = offset === 0;
  at("older").disabled = offset + studies.length >= total;
}

function turn(pages) {
  wanted.offset = Math.max(0, wanted.offset + pages * SIZE);
  look().catch(() => {});
}

function move(step) {
  const links = [...document.querySelectorAll(".study-link")];
  const place = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  links[place < 0 ? 0 : Math.min(links.length - 1, Math.max(0, place + step))]?.focus();
}

async function lookReady() {
  const { ready, problem } = await ask("GET", "/status");
  const text = ready ? "Drafting is ready." : problem ? `No drafts are made: ${problem}` : "The model is being loaded.";
  if (at("ready").textContent !== text) at("ready").textContent = text;
}

at("filter").addEventListener("submit", (event) => event.preventDefault());
at("search").addEventListener("input", (event) => {
  wanted.search = event.target.value;
  wanted.offset = 0;
  look().catch(() => {});
});
for (const name of FILTERS.slice(1)) {
  const field = at(`by-${name}`);
  field.value = wanted[name];
  field.addEventListener("input", () => {
    wanted[name] = field.value.trim();
    wanted.offset = 0;
    look().catch(() => {});
  });
}
at("newer").addEventListener("click", () => turn(-1));
at("older").addEventListener("click", () => turn(1));
document.addEventListener("radweave:submitted", ({ detail: [first] }) => {
  if ("try" in document.body.dataset) location.assign(`/studies/${first}`);
  else look().catch(() => {});
});

key("/", "search", () => at("search").focus());
key("u", "choose files to add", chooseFiles);
key("j", "next study", () => move(1));
key("k", "study before", () => move(-1));
listed("Enter", "open the study");
listed("Esc", "clear the search, where the focus is in it");

look().catch(() => {});
lookReady().catch(() => {});
repeat(look, 2);
repeat(lookReady, 5);
