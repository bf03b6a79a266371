// What readers change in drafts, in tables: acceptance, findings, months. Nothing is shown of too few studies.

import { ask } from "./api.js";
import { alarm, at, h, redraw } from "./dom.js";
import "./frame.js";

const percent = (value) => `${(100 * value).toFixed(0)} %`;
const points = (value) => `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`;
const seconds = (value) => `${value.toFixed(0)} s`;
const few = () => h("span", { class: "soft" }, "too few");

/** A figure with its interval and count. */
function cell(figure, write, counts = true) {
  if (!figure) return few();
  const range = figure.low === null ? "" : ` (${write(figure.low)} to ${write(figure.high)})`;
  return [h("b", {}, write(figure.value)), range, counts && h("span", { class: "soft" }, ` ${figure.count} of ${figure.of}`)];
}

function table(id, title, heads, rows, note) {
  if (!rows.length) return null;
  return h("section", { id, "aria-label": title }, h("h2", {}, title), note && h("p", { class: "soft" }, note),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
      h("table", {}, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", {}, rows.map(([head, ...cells]) => h("tr", {}, h("th", { scope: "row" }, head), cells.map((one) => h("td", {}, one))))))));
}

async function draw() {
  const { studies, readers, least, acceptance, seconds: time, findings, months } = await ask("GET", "/learning");
  at("about").textContent = studies === null ? `Fewer than ${least} studies were signed: nothing is shown yet.`
    : `${studies} signed studies, ${readers} ${readers === 1 ? "reader" : "readers"}. Nothing is shown of fewer than ${least} studies.`;
  if (studies === null) return;
  redraw(at("figures"),
    table("acceptance", "Drafts", ["", "Share or median"], [
      ["Signed unchanged", cell(acceptance.unchanged, percent)], ["Edited", cell(acceptance.edited, percent)],
      ["Sentences kept", cell(acceptance.sentences_kept, percent)], ["Rejected", cell(acceptance.rejected, percent)],
      ["Time for a study", cell(time, seconds, false)],
    ]),
    table("findings", "Findings", ["Finding", "Invented", "Missed", "On the other side"],
      findings.map((one) => [one.name, cell(one.invented, percent), cell(one.missed, percent), cell(one.other_side, percent)]),
      "Invented: drafts with the finding that were signed without it. Missed: signed texts with it whose draft has it not. Sides: where both give one. The most often changed stand first."),
    table("months", "Months", ["Month", "Studies", "Unchanged", "Sentences kept", "Time", "Drafted probability", "Signed", "Drift, points"],
      months.map((one) => [one.month, String(one.studies), cell(one.unchanged, percent, false), cell(one.sentences_kept, percent, false), cell(one.seconds, seconds, false),
        cell(one.probability, percent, false), cell(one.signed, percent, false), cell(one.drift, points, false)]),
      "Drift: mean calibrated probability of the drafts' findings less the share that was signed. 0 is no drift; above 0 the drafts claim too much."));
}

/** The reader study: each arm and the difference, of all readers and of each. */
async function drawReaderStudy() {
  const { least, readers, ...all } = await ask("GET", "/reader-study");
  const [withDraft, without] = Object.keys(all.studies);
  if (!all.studies[withDraft] && !all.studies[without]) return;
  const kinds = [["seconds", "Time", seconds], ["words", "Words from the model's draft", (value) => value.toFixed(0)], ["agreement", "Agreement with the reference (F1)", (value) => value.toFixed(2)]];
  const lines = (name, one) => kinds.map(([key, label, write]) => [`${name}${label}`, ...[withDraft, without, "difference"].map((arm) => cell(one[key][arm], write, arm !== "difference"))]);
  redraw(at("reader-study"), table("arms", "Reader study", ["", `With draft (${all.studies[withDraft]})`, `Without (${all.studies[without]})`, "Difference"],
    [...lines("", all), ...readers.flatMap((one) => lines(`${one.reader}: `, one))],
    `Medians, and F1 of the findings. No figure of an arm of fewer than ${least} studies.`));
}

draw().catch(alarm);
drawReaderStudy().catch(alarm);
