// The page of a study: it loads study and evidence, hands them to the parts, and looks whether someone else changed it.

import { ask, csrf, repeat } from "./api.js";
import { markOf, refusalOf } from "./anyway.js";
import { alarm, at, h, redraw, time } from "./dom.js";
import { drawDraft, hasUnsaved, insertRecalled, keysOfDraft } from "./draft.js";
import { drawExports } from "./exports.js";
import { drawDifference, showDifference } from "./difference.js";
import { drawFindings, drawRecalled } from "./findings.js";
import "./frame.js";
import { drawHistory } from "./history.js";
import { key } from "./keys.js";
import { hold, holderLine, keepLock } from "./lock.js";
import { drawPrior, loadPrior, showPrior } from "./prior.js";
import { add, decide, drawSign, hasAddendum, sign } from "./sign.js";
import { chip } from "./states.js";
import { loadTemplate } from "./template.js";
import { mountViewer } from "./viewer/viewer.js";

const id = at("study").dataset.study;
const page = { id, study: null, evidence: null, viewer: null, hasMaps: null, prior: null, template: null, reload: load, restore, change, showImages, mounting: null };
let drawn = "";

/** Load the study; draw what changed. */
async function load() {
  const study = await ask("GET", `/studies/${id}`);
  const look = JSON.stringify([study.state, study.version, study.altered_at, study.holder?.is_own ? null : study.holder?.user, study.addenda?.length, study.draft?.sentences.map((row) => [row.looked_at, row.lookers])]);
  page.study = study;
  if (study.draft && !page.evidence) page.evidence = await ask("GET", `/studies/${id}/evidence`);
  if (look === drawn) return;
  await loadPrior(page);
  drawn = look;
  draw();
  if (study.draft && page.hasMaps === false) await showImages();
}

/** Edit the draft as it is shown; true where that was kept. The parts say what became of a conflict. */
async function change(edits) {
  page.study.draft = await ask("PATCH", `/studies/${id}/sentences`, { version: page.study.version, edits });
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

function draw() {
  const { study } = page;
  document.title = `${study.name} – Radweave workstation`;
  at("name").textContent = study.name;
  redraw(at("about"), study.files.length ? `${study.files.length} ${study.files.length === 1 ? "file" : "files"}, received ` : "of the data set, received ", time(study.created), `, number ${id.slice(0, 8)}`);
  redraw(at("state"), chip(study.state));
  redraw(at("warnings"), holderLine(page), alteration(study), refusalOf(page), markOf(study), quiet(study.warnings ?? []));
  drawDraft(page);
  drawSign(page);
  drawHistory(page);
  drawPrior(page);
  if (study.draft) drawEvidence();
  for (const part of ["findings", "recalled", "prior", "difference", "exports", "history"]) at(part).hidden = !at(part).hasChildNodes();
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
  const images = showImages(); // they take longest
  try {
    page.template = await loadTemplate();
    await load();
    await hold(page);
  } catch (problem) {
    return alarm(problem);
  }
  await images;
}

const SKIPPED = "radweave.skipped";

/** Go to the next study to read: the most urgent, of those the oldest, that nobody else has; none twice before all were seen. */
async function next() {
  const skipped = [...new Set([...JSON.parse(sessionStorage.getItem(SKIPPED) ?? "[]"), id])].slice(-200);
  const query = (ids) => ask("GET", `/studies/next?${new URLSearchParams(ids.map((one) => ["skip", one]))}`);
  let { studies: [other] } = await query(skipped);
  sessionStorage.setItem(SKIPPED, JSON.stringify(other ? skipped : [id]));
  if (!other) ({ studies: [other] } = await query([id]));
  if (!other) return alarm("No other study waits for a reader.");
  location.assign(`/studies/${other.id}`);
}

/** Mount the viewer; again where a draft came since, for maps come with it. */
async function showImages() {
  page.viewer?.destroy();
  page.viewer = null;
  page.hasMaps = null;
  try {
    page.mounting = mountViewer(at("viewer"), { study: id, csrf });
    page.viewer = await page.mounting;
    page.hasMaps = page.viewer.hasDraft;
  } catch {
    redraw(at("viewer"), h("p", {}, "The images cannot be shown."));
  }
}

window.addEventListener("beforeunload", (event) => {
  if (hasUnsaved() || hasAddendum()) event.preventDefault();
});

keepLock(page);
keysOfDraft(page);
key("d", "difference to the first draft", () => showDifference(page));
key("f", "findings", () => at("findings").querySelector("button, summary, table")?.focus());
key("v", "images", () => at("viewer").focus());
key("m", "hide the maps", () => page.viewer?.hideMaps());
key("p", "the image before this one", () => showPrior(page));
key("s", "sign", () => sign(page));
key("r", "reject the draft, or reopen it", () => decide(page));
key("t", "add an addendum to what is signed", () => add(page));
key("g", "next drafted study", () => next());
key("w", "work list", () => location.assign("/studies"));

start();
repeat(load, 4);
