// Who has the study in hand: the reader who opened it, until they leave, sign or are idle. Others read, or take it over.

import { ask, csrf } from "./api.js";
import { alarm, button, h, say, time } from "./dom.js";
import { dialog } from "./keys.js";

const RENEWED_MS = 60_000;
let held = 0;

const isOpen = ({ study }) => study?.state === "drafted" || study?.state === "edited";
export const isOthers = ({ study }) => Boolean(study.holder && !study.holder.is_own);

/** Hold the study, or hold it longer: at most once a minute, where nobody else has it. */
export async function hold(page) {
  if (!isOpen(page) || isOthers(page) || Date.now() - held < RENEWED_MS) return;
  held = Date.now();
  try {
    page.study.holder = (await ask("POST", `/studies/${page.id}/lock`, {})).holder;
  } catch (problem) {
    if (problem.status === 409) await page.reload();
  }
}

/** Let go of a study that is left. */
export function letGo(page) {
  held = 0;
  if (!page.study?.holder?.is_own) return;
  fetch(`/api/v1/studies/${page.id}/lock`, { method: "DELETE", keepalive: true, headers: { "X-CSRF-Token": csrf } }).catch(() => {});
}

/** Hold while the reader does something, and let go where they leave. */
export function keepLock(page) {
  for (const sign of ["keydown", "pointerdown", "wheel"]) document.addEventListener(sign, () => hold(page), { capture: true, passive: true });
  window.addEventListener("pagehide", () => letGo(page));
  window.addEventListener("pageshow", ({ persisted }) => persisted && page.reload().then(() => hold(page)).catch(() => {}));
}

/** A line that names who has the study, with the way to take it over; false where it is free or one's own. */
export function holderLine(page) {
  const { holder } = page.study;
  return isOpen(page) && isOthers(page) && h("div", { class: "alert row spread", id: "holder" },
    h("p", {}, `${holder.user} has this study in hand since `, time(holder.since), ". You may read it."),
    button("Take it over…", () => confirmed(page), { id: "take-over", focus: "take-over" }));
}

function confirmed(page) {
  const { holder } = page.study;
  const shown = dialog("Take this study over?",
    h("p", {}, `${holder.user} can no longer edit or sign it. What they saved is kept, and the log names both of you.`),
    h("p", { class: "actions" }, button("Take it over", () => take(page, shown, holder), { class: "main", id: "take-over-now" }), button("Not now", () => shown.close())));
}

async function take(page, shown, holder) {
  try {
    await ask("POST", `/studies/${page.id}/lock`, { instead_of: holder.user_id });
    held = Date.now();
    say("The study is in your hand.");
  } catch (problem) {
    alarm(problem);
  }
  shown.close();
  await page.reload().catch(() => {});
}
