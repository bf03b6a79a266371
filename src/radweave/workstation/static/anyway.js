// A refused study: why, above its images, and a draft all the same for who may ask for it, confirmed once more.

import { ask } from "./api.js";
import { alarm, at, button, h } from "./dom.js";
import { dialog } from "./keys.js";

/** The reason of a refusal, for the place above the film; false where there is none. */
export function refusalOf(page) {
  const { state, reason, refusal } = page.study;
  if (state !== "refused") return false;
  const mayAsk = refusal?.may_draft === true;
  return h("div", { class: "alert", id: "refusal" }, h("h2", {}, "Refused: there is no draft"), h("p", { class: "reason" }, reason ?? "no reason is known"),
    mayAsk && h("p", { class: "actions" }, button("Draft anyway…", () => confirm(page), { focus: "anyway" })),
    !mayAsk && refusal?.roles.length > 0 && h("p", { class: "soft" }, `A draft all the same needs the role ${refusal.roles.join(" or ")}.`));
}

/** That the draft was refused before, and who asked for it. */
export function markOf({ drafted_anyway: given }) {
  return given ? h("p", { class: "alert", id: "drafted-anyway" }, `Drafted although it was refused (${given.kind}); asked for by ${given.by ?? "a user"}.`) : false;
}

function confirm(page) {
  const shown = dialog("Draft a study that was refused?",
    h("p", { class: "reason", tabindex: "0", autofocus: true }, page.study.reason ?? ""),
    h("p", {}, "The model was not made for such images: its draft may be wrong in any way. The log keeps that you asked, and the draft says it wherever it goes."),
    h("p", { class: "actions" }, button("Draft anyway", () => send(page, shown), { class: "main", id: "anyway-now" }), button("Leave it", () => shown.close())));
}

async function send(page, shown) {
  shown.close();
  try {
    await ask("POST", `/studies/${page.id}/anyway`, { refusal: page.study.refusal.kind });
  } catch (problem) {
    alarm(problem);
  }
  await page.reload().catch(() => {});
  at("viewer").focus();
}
