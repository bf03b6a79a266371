// Sign-off: never before who signs looked at every flagged sentence. Addenda and rejections. The time counts while the
// page is seen.

import { ask } from "./api.js";
import { alarm, at, button, h, redraw, say, time } from "./dom.js";
import { canEdit, hasUnsaved } from "./draft.js";
import { dialog, shortcut } from "./keys.js";
import { isFilms } from "./windows.js";

const LONGEST_S = 86_400;
const nameOf = (study) => `radweave.seconds.${study}`;
let name = nameOf(at("study").dataset.study);
let counted = Number(localStorage.getItem(name)) || 0;
let isCounting = true;
let since = document.hidden ? null : performance.now();

/** Seconds for which this study was seen in this browser, over reloads too. */
function seconds() {
  return Math.min(LONGEST_S, counted + (since === null ? 0 : (performance.now() - since) / 1000));
}

/** Count for another study from now on. */
export function countFor(study) {
  if (isCounting) keep();
  isCounting = true;
  [typed.addenda, typed.reject] = ["", ""];
  name = nameOf(study);
  counted = Number(localStorage.getItem(name)) || 0;
  since = document.hidden ? null : performance.now();
}

function keep() {
  if (isFilms || !isCounting) return;
  counted = seconds();
  since = document.hidden ? null : performance.now();
  localStorage.setItem(name, counted.toFixed(1));
}

document.addEventListener("visibilitychange", keep);
window.addEventListener("pagehide", keep);
setInterval(keep, 10_000);

const unseen = (page) => page.study.draft.sentences.filter((row) => row.flagged && !row.looked_at);
const clock = (all) => `${Math.floor(all / 60)}:${String(Math.floor(all % 60)).padStart(2, "0")} min`;

const said = (left) => `${left} flagged ${left === 1 ? "sentence" : "sentences"} you have not looked at yet.`;

export function drawSign(page) {
  const { study } = page;
  at("sign").hidden = !study.draft;
  if (!study.draft) return;
  if (study.rejection) return redraw(at("sign"), rejection(page));
  if (study.signature) return redraw(at("sign"), signature(study.signature), study.addenda.map(addendum), addition(page));
  const left = unseen(page).length;
  const isEmpty = !study.draft.sentences.length;
  const words = isEmpty ? "The report is empty: there is nothing to sign." : left ? said(left) : study.draft.sentences.some((row) => row.flagged) ? "You looked at every flagged sentence." : "No sentence is flagged.";
  redraw(at("sign"), h("div", { class: "row spread" },
    h("p", { id: "sign-words" }, (left > 0 || isEmpty) && h("span", { class: "bad", "aria-hidden": "true" }, "! "), words),
    h("p", { class: "actions" },
      button("Reject…", () => reject(page), { id: "reject-button", focus: "reject", "aria-keyshortcuts": shortcut("r") }),
      button("Sign…", () => sign(page), { class: "main", id: "sign-button", focus: "sign", disabled: left > 0 || isEmpty, "aria-describedby": "sign-words", "aria-keyshortcuts": shortcut("s") }))));
}

function rejection(page) {
  const { rejection: given, reason } = page.study;
  return [h("h2", { tabindex: "-1" }, "Rejected"), h("p", {}, `By ${given.user ?? "a reader"}, `, time(given.time), ". The draft is no report and is not exported."),
    h("p", { class: "reason" }, reason),
    given.may_reopen && h("p", { class: "actions" }, button("Reopen", () => reopen(page), { id: "reopen-button", focus: "reopen", "aria-keyshortcuts": shortcut("r") }))];
}

const addendum = (one) => [h("h3", {}, `Addendum ${one.number}`), h("p", { class: "lines-kept report" }, one.text),
  h("p", { class: "soft" }, `Signed by ${one.user}, `, time(one.time), ".")];

const addition = (page) => h("p", { class: "actions" },
  button("Add an addendum…", () => add(page), { id: "addendum-button", focus: "addendum", "aria-keyshortcuts": shortcut("t") }));

function signature(given) {
  return [h("h2", { tabindex: "-1" }, "Signed"), h("p", {}, `Version ${given.version}, by ${given.user ?? "a reader"}, `, time(given.time), "."),
    h("p", { class: "soft" }, `${clock(given.seconds)} spent, ${given.edit_distance_words} ${given.edit_distance_words === 1 ? "word" : "words"} changed, ${given.accepted_sentences} of ${given.draft_sentences} sentences as the model wrote them.`)];
}

export function sign(page) {
  if (!page.study?.draft || !canEdit(page)) return;
  const left = unseen(page).length;
  if (left) return alarm(said(left));
  if (!page.study.draft.sentences.length) return alarm("The report is empty: there is nothing to sign.");
  if (hasUnsaved()) return alarm("Save or cancel the sentence that you are writing first.");
  keep();
  const { draft } = page.study;
  const shown = dialog("Sign this report?",
    h("p", { class: "lines-kept report", tabindex: "0", autofocus: true }, draft.text),
    h("p", { class: "soft" }, `Version ${draft.version}; ${clock(seconds())} on this page. It cannot be changed after that, but for addenda.`),
    h("p", { class: "actions" },
      button("Sign", () => send(page, shown, draft.version), { class: "main", id: "sign-now", "aria-keyshortcuts": "Control+Enter" }),
      button("Sign, then the next", () => send(page, shown, draft.version, page.next), { id: "sign-next", "aria-keyshortcuts": "Control+Shift+Enter" }),
      button("Not yet", () => shown.close())));
  shown.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || shown.querySelector("button:disabled")) return;
    event.preventDefault();
    send(page, shown, draft.version, event.shiftKey ? page.next : undefined);
  });
}

/** Sign the version that the dialog shows, whatever came meanwhile; then go on where `next` says how. */
async function send(page, shown, version, next) {
  keep();
  const seconds = Math.round(10 * counted) / 10;
  const isSigned = await post(page, shown, "sign", { version, seconds }, "Signed.", () => {
    isCounting = false;
    localStorage.removeItem(name);
  });
  if (isSigned) await next?.();
}

/** Send a decision and close its dialog; true where it was taken. What was typed stays in the dialog where the server refuses it. */
async function post(page, shown, what, body, words, done = () => {}) {
  const buttons = [...(shown?.querySelectorAll("button") ?? [])];
  for (const one of buttons) one.disabled = true;
  try {
    await ask("POST", `/studies/${page.id}/${what}`, body);
    done();
    shown?.close();
    await page.reload();
    say(words);
    at("sign").querySelector("h2, button")?.focus();
    return true;
  } catch (problem) {
    for (const one of buttons) one.disabled = false;
    const text = problem.status === 409 ? `Not done: ${problem.message}. The study is shown as it is now.` : problem.message;
    const place = shown?.querySelector("[role=alert]");
    if (place) place.textContent = text;
    else {
      shown?.close();
      alarm(text);
    }
    await page.reload().catch(() => {});
    return false;
  }
}

const typed = { addenda: "", reject: "" };
export const hasAddendum = () => typed.addenda.trim() !== "";

/** Ask for a text, and send it with what `body` gives. What was typed is there again when the dialog is opened anew. */
function write(page, what, { title, words, label, most, body, said: done }) {
  const area = h("textarea", { id: `${what}-text`, rows: "4", maxlength: most, autofocus: true, oninput: () => { typed[what] = area.value; } });
  area.value = typed[what];
  const go = () => (area.value.trim() ? post(page, shown, what, body(area.value.trim()), done, () => { typed[what] = ""; }) : area.focus());
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go();
  });
  const shown = dialog(title, h("p", {}, h("label", { for: `${what}-text` }, words)), area, h("p", { role: "alert", class: "bad" }),
    h("p", { class: "actions" }, button(label, go, { class: "main", id: `${what}-now` }), button("Not yet", () => shown.close())));
}

export function add(page) {
  if (!page.study?.signature) return;
  const after = page.study.addenda.length;
  write(page, "addenda", {
    title: "Add an addendum?", label: "Sign the addendum", most: 20_000, said: "The addendum is signed.",
    words: "Your addendum. The signed text stays as it is; both go to where the report went. An addendum cannot be changed.",
    body: (text) => ({ after, text }),
  });
}

function reject(page) {
  if (!page.study?.draft || !canEdit(page)) return;
  if (hasUnsaved()) return alarm("Save or cancel the sentence that you are writing first.");
  const { version } = page.study;
  write(page, "reject", {
    title: "Reject this draft?", label: "Reject", most: 500, said: "Rejected.",
    words: "Why it is no report. An archive that has the draft gets a notice with this reason.",
    body: (text) => ({ version, reason: text }),
  });
}

const reopen = (page) => post(page, null, "reopen", { version: page.study.version }, "Reopened.");

/** Reject a draft, or reopen it. */
export function decide(page) {
  if (!page.study?.rejection) return reject(page);
  if (page.study.rejection.may_reopen) reopen(page);
}
