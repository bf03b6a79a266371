// The page of a study: it loads study and evidence, hands them to the parts, and looks whether someone else changed it.

import { dropAhead, fetchAhead, takeAhead } from "./ahead.js";
import { markOf, refusalOf } from "./anyway.js";
import { ask, repeat } from "./api.js";
import { drawDifference, forgetDifference, showDifference } from "./difference.js";
import { alarm, at, clearAlarm, h, redraw, say, time } from "./dom.js";
import { boxesOf, drawDraft, forgetDraft, hasUnsaved, insertRecalled, keysOfDraft } from "./draft.js";
import { drawExports } from "./exports.js";
import { drawFindings, drawRecalled, forgetFindings } from "./findings.js";
import "./frame.js";
import { drawHistory } from "./history.js";
import { act, key } from "./keys.js";
import { hold, holderLine, keepLock, letGo } from "./lock.js";
import { loadMacros } from "./macros.js";
import { markSentences, onMarked } from "./marks.js";
import { drawPrior, forgetPrior, loadPrior, showPrior } from "./prior.js";
import { add, countFor, decide, drawSign, hasAddendum, sign } from "./sign.js";
import { chip } from "./states.js";
import { loadTemplate } from "./template.js";
import { ageAndSex, dateOf, inLine } from "./viewer/patient.js";
import { Source } from "./viewer/source.js";
import { mountViewer } from "./viewer/viewer.js";
import { drawQueue, isFilms, joinWindows, otherWindow, tell, toggleWindows } from "./windows.js";

const page = { id: at("study").dataset.study, study: null, evidence: null, viewer: null, hasMaps: null, prior: null, template: null, reload: load, restore, change, showImages: showAgain, next, mounting: null };
const PARTS = ["findings", "recalled", "prior", "difference", "exports", "history"];
let drawn = "";
let source = null;

/** Load the study; draw what changed. */
async function load() {
  const { id } = page;
  const study = await ask("GET", `/studies/${id}`);
  if (id !== page.id) return; // another study was opened meanwhile
  const look = JSON.stringify([study.state, study.version, study.altered_at, study.holder?.is_own ? null : study.holder?.user, study.addenda?.length, study.draft?.sentences.map((row) => [row.looked_at, row.lookers])]);
  page.study = study;
  if (isFilms) name();
  else if (study.draft && !page.evidence) {
    const evidence = await ask("GET", `/studies/${id}/evidence`);
    if (id !== page.id) return;
    page.evidence = evidence;
  }
  if (look === drawn) return;
  page.viewer?.setBoxes(boxesOf(page));
  if (!isFilms) await loadPrior(page);
  if (id !== page.id) return;
  drawn = look;
  if (!isFilms) draw();
  if (study.draft && page.hasMaps === false) await showImages();
}

/** Edit the draft as it is shown; true where that was kept. The parts say what became of a conflict. */
async function change(edits) {
  page.study.draft = await ask("PATCH", `/studies/${page.id}/sentences`, { version: page.study.version, edits });
  await load();
}

async function restore(version) {
  try {
    await change([{ op: "restore", version }]);
  } catch (problem) {
    alarm(problem);
    await load().catch(() => {});
  }
}

/** The study's name and state. */
function name() {
  const { study, id } = page;
  document.title = `${study.name} – Radweave workstation`;
  at("name").textContent = study.name;
  const { patient_name, patient_id, accession_number, modality, body_part_examined, study_date } = study.headers;
  const who = inLine(patient_name, patient_id);
  const what = inLine(ageAndSex(study.headers), modality, body_part_examined, dateOf(study_date), accession_number);
  redraw(at("patient"), who && h("b", {}, who), who && " ", what);
  at("patient").hidden = !who && !what;
  redraw(at("about"), study.files.length ? `${study.files.length} ${study.files.length === 1 ? "file" : "files"}, received ` : "of the data set, received ", time(study.created), `, number ${id.slice(0, 8)}`);
  redraw(at("state"), chip(study.state));
  at("draft-title").textContent = study.signature ? "Report" : "Draft";
}

function draw() {
  const { study } = page;
  name();
  redraw(at("warnings"), holderLine(page), alteration(study), refusalOf(page), markOf(study), quiet(study.warnings ?? []));
  drawDraft(page);
  drawSign(page);
  drawHistory(page);
  drawPrior(page);
  if (study.draft) drawEvidence();
  for (const part of PARTS) at(part).hidden = !at(part).hasChildNodes();
}

/** Warnings as one line that opens. */
const quiet = (warnings) => warnings.length > 0 && h("details", { class: "quiet", id: "quiet", open: at("quiet")?.open ?? false }, h("summary", { "data-focus": "quiet" }, h("b", {}, `${warnings.length} ${warnings.length === 1 ? "warning" : "warnings"}`), ` ${warnings[0]}`),
  h("ul", {}, warnings.map((text) => h("li", {}, text))));

const alteration = ({ altered_at: entry }) => typeof entry === "number" && h("div", { class: "alert", id: "altered" }, h("h2", {}, "Altered after it was signed"),
  h("p", {}, `This is not what was signed, as entry ${entry} of the log shows. It is not exported, and nobody stands for it.`));

function drawEvidence() {
  drawFindings(page);
  drawRecalled(page, { insert: (case_, text) => insertRecalled(page, case_, text) });
  drawDifference(page);
  drawExports(page);
  drawFooter(page.study);
}

function drawFooter({ model, draft }) {
  const short = (hash) => h("code", { title: hash ?? "" }, (hash ?? "none").slice(0, 12));
  redraw(at("model"), `This draft was made by ${model.method} (${model.preset ?? "?"}), weights `, short(model.weights), ", bank ",
    short(model.bank), `, Radweave ${model.radweave ?? "?"}.`);
  redraw(at("text-version"), `Text: version ${draft.version} of `, time(draft.created), ", SHA-256 ", short(draft.sha256), ".");
}

async function start() {
  const images = joinWindows({ page, open, act, show: showImages }).then(() => showImages()); // they take longest
  try {
    if (!isFilms) [page.template] = await Promise.all([loadTemplate(), loadMacros()]);
    await load();
    if (!isFilms) await hold(page);
  } catch (problem) {
    return alarm(problem);
  }
  await images;
  if (!isFilms) await lookAhead();
}

/** Show another study in this page, as a link to it would. What was fetched ahead of it is there at once. */
async function open(id, { isBack = false } = {}) {
  if (id === page.id) return;
  if (hasUnsaved() || hasAddendum()) {
    if (isBack) history.pushState(null, "", address(page.id));
    return alarm("Save or cancel what you are writing first.");
  }
  letGo(page);
  const taken = takeAhead(id);
  dropAhead();
  Object.assign(page, { id, study: null, evidence: null, prior: null });
  drawn = "";
  if (!isBack) history.pushState(null, "", address(id));
  for (const forget of [forgetDraft, forgetFindings, forgetDifference, forgetPrior]) forget();
  countFor(id);
  clearAlarm();
  for (const part of ["patient", "about", "warnings", "draft-tools", "draft", "sign", ...PARTS]) redraw(at(part));
  for (const part of ["sign", ...PARTS]) at(part).hidden = true;
  if (!isFilms) tell({ study: id });
  drawQueue().catch(() => {});
  const images = showImages(taken?.source);
  if (taken?.study) {
    page.study = taken.study;
    name();
    drawDraft(page); // as it was when it was fetched; it is asked for anew now
  }
  window.scrollTo(0, 0);
  try {
    await load();
    if (!isFilms) await hold(page);
  } catch (problem) {
    return alarm(problem);
  }
  if (id === page.id && page.study) say(`${page.study.name} is shown.`);
  await images;
  if (!isFilms && id === page.id) await lookAhead();
}

const address = (id) => `/studies/${id}${location.search}`;
window.addEventListener("popstate", () => open(location.pathname.split("/").at(-1), { isBack: true }));

const SKIPPED = "radweave.skipped";
const skipped = () => [...new Set([...JSON.parse(sessionStorage.getItem(SKIPPED) ?? "[]"), page.id])].slice(-200);
const following = async (ids) => (await ask("GET", `/studies/next?${new URLSearchParams(ids.map((one) => ["skip", one]))}`)).studies[0];

/** Go to the next study to read: the most urgent, of those the oldest, that nobody else has; none twice before all were seen. */
async function next() {
  const ids = skipped();
  try {
    let other = await following(ids);
    sessionStorage.setItem(SKIPPED, JSON.stringify(other ? ids : [page.id]));
    other ??= await following([page.id]);
    if (!other) return alarm("No other study waits for a reader.");
    await open(other.id);
  } catch (problem) {
    alarm(problem);
  }
}

/** Fetch the next study while this one is read. */
async function lookAhead() {
  const { id } = page;
  const other = await following(skipped()).catch(() => null);
  if (id === page.id && other) await fetchAhead(other.id);
}

/** Show the images anew, wherever they are. */
async function showAgain() {
  if (otherWindow()) tell({ again: true });
  else await showImages();
}

/** Mount the viewer; again where a draft came since, for maps come with it. In two windows, the films are in the other one. */
async function showImages(given = null) {
  const { id } = page;
  source?.stop();
  page.viewer?.destroy();
  page.hasMaps = null;
  page.viewer = null;
  if (otherWindow()) {
    page.viewer = otherWindow();
    page.mounting = Promise.resolve(page.viewer);
    at("viewer").replaceChildren();
    return;
  }
  const mine = (source = given ?? new Source(id));
  try {
    page.mounting = mountViewer(at("viewer"), { study: id, source: mine, pointed, stepped: (by) => act(by > 0 ? "b" : "B") });
    const viewer = await page.mounting;
    if (mine !== source) return viewer.destroy();
    page.viewer = viewer;
    page.hasMaps = viewer.hasDraft;
    viewer.setBoxes(boxesOf(page));
  } catch {
    if (mine === source && !otherWindow()) redraw(at("viewer"), h("p", {}, "The images cannot be shown."));
  }
}

let isOnBox = false;

/** The pointer is on a box of these sentences, or on none. */
function pointed(keys) {
  if (!keys.length && !isOnBox) return;
  isOnBox = keys.length > 0;
  if (isFilms) {
    page.viewer?.markBoxes(keys);
    tell({ pointed: keys });
  } else markSentences(keys);
}

if (!isFilms) onMarked((keys) => page.viewer?.markBoxes(keys)); // the window with the draft knows what is marked

window.addEventListener("beforeunload", (event) => {
  if (hasUnsaved() || hasAddendum()) event.preventDefault();
});

if (!isFilms) keepLock(page);
keysOfDraft(page);
key("d", "difference to the first draft", () => showDifference(page));
key("f", "findings", () => at("findings").querySelector("button, summary, table")?.focus());
key("v", "images", () => (otherWindow() ? tell({ focus: true }) : at("viewer").focus()));
key("m", "hide the maps", () => page.viewer?.hideMaps());
key("p", "the image before this one", () => showPrior(page));
key("s", "sign", () => sign(page));
key("r", "reject the draft, or reopen it", () => decide(page));
key("t", "add an addendum to what is signed", () => add(page));
key("g", "next drafted study", () => next());
at("apart").addEventListener("click", toggleWindows);
key("o", "films in a window of their own, and back", () => toggleWindows());
key("w", "work list", () => location.assign("/studies"));

start();
repeat(load, 4);
repeat(drawQueue, 4);
