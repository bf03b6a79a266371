// How a sentence's facts are put: what was checked, what was not. The sign of a tick stands for nothing less than all of it.

import { h, percent } from "./dom.js";

const VERDICTS = {
  "contradicts its classifier": ["bad", "✕"],
  "its place is improbable": ["bad", "↔"],
  "evidence disagrees": ["doubt", "!"],
  "nothing agrees with it": ["doubt dashed", "?"],
  "not confirmed": ["plain", "?"],
  "checked in part": ["plain", "◐"],
  checked: ["good", "✓"],
  "names no finding": ["plain", "–"],
  edited: ["plain", "✎"],
};

const mark = (kind, sign, words) => h("span", { class: `chip ${kind}` }, h("span", { "aria-hidden": "true" }, sign), " ", words);

const LISTED = ["checked", "checked in part", "not confirmed"];

function spelled({ verdict: found, checked = [], not_checked: left = [] }) {
  const lists = [checked.length > 0 && `checked: ${checked.join(", ")}`, left.length > 0 && `not checked: ${left.join(", ")}`];
  return [LISTED.includes(found) ? null : found, ...lists].filter(Boolean).join("; ") || found;
}

export function verdict(row) {
  const [kind, sign] = VERDICTS[row.verdict] ?? ["plain", "–"];
  return mark(kind, sign, spelled(row));
}

/** The sign of a sentence's verdict, for the margin. */
export function margin(row) {
  const [kind, sign] = VERDICTS[row.verdict] ?? ["plain", "–"];
  return h("span", { class: `mark ${kind}`, "aria-hidden": "true", title: spelled(row) }, sign);
}

export const against = (row) => row.details.prior?.length > 0 && mark("bad", "⇄", "does not fit the prior report");

/** What is known of the places of a sentence's findings. */
export const places = ({ details }) => (details.places ?? []).map((place) => {
  if (place.probability === null) return h("span", {}, `${place.named ? `${place.named}: ` : ""}place not checked`);
  const words = `${place.named}, ${percent(place.probability)} probable as its place`;
  return place.improbable ? mark("bad", "↔", words) : h("span", {}, words);
});

export function probability(row) {
  if (row.probability === null) return row.verdict === "edited" ? "no probability: it was edited" : "no probability";
  const kind = row.details.calibrated === true ? "calibrated" : row.details.calibrated === false ? "not calibrated" : "as the model gives it";
  return `${percent(row.probability)} probable (${kind})`;
}

export function origin({ origin: from, editor, verdict: found }) {
  const isReaders = from.kind === "reader";
  const source = {
    generated: "written by the model",
    report: `from training report ${from.study_id}`,
    template: `from the normal report ${from.study_id}`,
    finding: `put in from training report ${from.study_id}`,
    comparison: `change since the prior, from training report ${from.study_id}`,
    prior: "from the report of the prior study",
    recalled: `from recalled case ${from.number} (${from.study_id ?? "unknown"})`,
    reader: `written by ${editor ?? "a reader"}`,
  }[from.kind] ?? from.kind;
  const hand = from.kind === "recalled" && found === "edited" ? "put in" : "edited";
  return !isReaders && editor ? `${source}; ${hand} by ${editor}` : source;
}

/** What the sentence says of each class, and how the evidence stands to that. */
export function why({ details, confidence }) {
  const claims = details.claims ?? [];
  const lines = [
    ...claims.map((claim) => h("li", {}, h("b", {}, claim.name), ` ${claim.said}: ${claim.verdict}`,
      claim.probability !== null && `, probability ${percent(claim.probability)} (${claim.calibrated ? "calibrated" : "not calibrated"}), threshold ${percent(claim.threshold)}`,
      claim.agree.length > 0 && `; recalled ${cases(claim.agree)} ${claim.agree.length === 1 ? "says" : "say"} the same`, claim.differ.length > 0 && `; recalled ${cases(claim.differ)} ${claim.differ.length === 1 ? "says" : "say"} the opposite`)),
    ...(details.places ?? []).map(({ finding, named, probability: likely, probabilities, too_large: large }) => h("li", {}, `Place of ${finding}: ${[named, likely === null ? "not checked" : `probability ${percent(likely)}`].filter(Boolean).join(", ")}`,
      Object.keys(probabilities).length > 0 && `; by the images ${Object.entries(probabilities).map(([name, value]) => `${name} ${percent(value)}`).join(", ")}`,
      large > 0 && `; ${large === 1 ? "a box covers" : `${large} boxes cover`} nearly the whole image, which says no place, and ${large === 1 ? "is" : "are"} left out`)),
    ...(details.prior ?? []).map((text) => h("li", {}, text)),
    details.verbatim?.length > 0 && h("li", {}, `Stands word for word in recalled ${cases(details.verbatim)}.`),
    confidence !== null && confidence !== undefined && h("li", {}, `The language model was ${percent(confidence)} sure of its wording, which is not the probability that it is true.`),
  ].filter(Boolean);
  return lines.length > 0 && h("details", { class: "why" }, h("summary", {}, "Why"), h("ul", {}, lines));
}

const cases = (numbers) => `${numbers.length === 1 ? "case" : "cases"} ${numbers.join(", ")}`;
