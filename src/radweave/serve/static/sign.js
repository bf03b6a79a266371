// Sign-off: never before every flagged sentence was looked at. The time counts while the page is seen.

import { ask } from "./api.js";
import { alarm, at, button, h, redraw, say, time } from "./dom.js";
import { canEdit, hasUnsaved } from "./draft.js";
import { dialog } from "./keys.js";

const LONGEST_S = 86_400;
const name = `radweave.seconds.${at("study").dataset.study}`;
let counted = Number(localStorage.getItem(name)) || 0;
let since = document.hidden ? null : performance.now();

/** Seconds for which this study was seen in this browser, over reloads too. */
function seconds() {
  return Math.min(LONGEST_S, counted + (since === null ? 0 : (performance.now() - since) / 1000));
}

function keep() {
  counted = seconds();
  since = document.hidden ? null : performance.now();
  localStorage.setItem(name, counted.toFixed(1));
}

document.addEventListener("visibilitychange", keep);
window.addEventListener("pagehide", keep);
setInterval(keep, 10_000);

const unseen = (page) => page.study.draft.sentences.filter((row) => row.flagged && !row.looked_at);
const clock = (all) => `${Math.floor(all / 60)}:${String(Math.floor(all % 60)).padStart(2, "0")} min`;

export function drawSign(page) {
  const { study } = page;
  at("sign").hidden = !study.draft;
  if (!study.draft) return;
  if (study.signature) return redraw(at("sign"), signature(study.signature));
  const left = unseen(page).length;
  const words = left ? `${left} flagged ${left === 1 ? "sentence" : "sentences"} nobody has looked at yet.` : "Every flagged sentence was looked at.";
  redraw(at("sign"), h("div", { class: "row spread" },
    h("p", { id: "sign-words" }, left > 0 && h("span", { class: "bad", "aria-hidden": "true" }, "! "), words),
    button("Sign…", () => sign(page), { class: "main", id: "sign-button", focus: "sign", disabled: left > 0, "aria-describedby": "sign-words", "aria-keyshortcuts": "s" })));
}

function signature(given) {
  return [h("h2", {}, "Signed"), h("p", {}, `Version ${given.version}, by ${given.user ?? "a reader"}, `, time(given.time), "."),
    h("p", { class: "soft" }, `${clock(given.seconds)} spent, ${given.edit_distance_words} words changed, ${given.accepted_sentences} of ${given.draft_sentences} sentences as the model wrote them.`)];
}

export function sign(page) {
  if (!page.study?.draft || !canEdit(page)) return;
  const left = unseen(page).length;
  if (left) return alarm(`${left} flagged ${left === 1 ? "sentence" : "sentences"} nobody has looked at yet.`);
  if (hasUnsaved()) return alarm("Save or cancel the sentence that you are writing first.");
  keep();
  const { draft } = page.study;
  const shown = dialog("Sign this report?",
    h("p", { class: "lines-kept report", tabindex: "0", autofocus: true }, draft.text || "The report is empty."),
    h("p", { class: "soft" }, `Version ${draft.version}; ${clock(seconds())} on this page. It cannot be changed after that.`),
    h("p", { class: "actions" },
      button("Sign", () => send(page, shown), { class: "main", id: "sign-now" }), button("Not yet", () => shown.close())));
}

async function send(page, shown) {
  shown.querySelector("#sign-now").disabled = true;
  keep();
  try {
    await ask("POST", `/studies/${page.id}/sign`, { version: page.study.version, seconds: Math.round(10 * counted) / 10 });
    localStorage.removeItem(name);
    shown.close();
    await page.reload();
    say("Signed.");
    at("sign").querySelector("h2")?.focus();
  } catch (problem) {
    shown.close();
    await page.reload().catch(() => {});
    alarm(problem.status === 409 ? `Not signed: ${problem.message}. The draft is shown as it is now.` : problem);
  }
}
