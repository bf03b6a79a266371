// The whole log, and why drafting stood still: for admins.

import { ask, repeat } from "./api.js";
import { alarm, at, h, redraw, time } from "./dom.js";
import "./frame.js";
import { table } from "./history.js";

const SIZE = 100;
let offset = 0;

async function look() {
  try {
    const { entries } = await ask("GET", `/log?newest_first=true&offset=${offset}&limit=${SIZE}`);
    redraw(at("entries"), entries.length ? table(entries, { withStudy: true }) : h("p", { class: "empty" }, "No more entries."));
    at("range").textContent = entries.length ? `entries ${entries.at(-1).number} to ${entries[0].number}` : "";
    at("newer").disabled = offset === 0;
    at("older").disabled = entries.length < SIZE || entries.at(-1).number === 1;
  } catch (problem) {
    alarm(problem);
  }
}

async function lookWorker() {
  const { ready, problem, lost } = await ask("GET", "/status");
  redraw(at("worker"), h("p", {}, ready ? "Drafting is ready." : problem ? "No drafts are made." : "The model is being loaded."),
    problem && h("p", { class: "alert" }, problem),
    lost.length ? h("table", {}, h("caption", {}, "Inference processes that were lost since the server started"),
      h("thead", {}, h("tr", {}, ["When", "Why", "Studies it had"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, lost.map((one) => h("tr", {}, h("td", {}, time(one.time)), h("td", {}, one.reason), h("td", { class: "number" }, String(one.studies))))))
      : h("p", { class: "soft" }, "No inference process was lost since the server started."));
}

function turn(pages) {
  offset = Math.max(0, offset + pages * SIZE);
  look();
}

at("newer").addEventListener("click", () => turn(-1));
at("older").addEventListener("click", () => turn(1));
at("verify").addEventListener("click", async () => {
  try {
    const found = await ask("GET", "/log/check");
    at("check").textContent = found.altered_at.length ? `What was signed was altered. Entries that say what it was: ${found.altered_at.join(", ")}.`
      : found.broken_at === null ? `${found.entries} entries, each with the hash of the one before; the last is ${found.hash.slice(0, 16)}…`
      : `The log was changed at entry ${found.broken_at}.`;
  } catch (problem) {
    alarm(problem);
  }
});

look();
lookWorker().catch(alarm);
repeat(lookWorker, 5);
