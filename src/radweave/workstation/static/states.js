// What states are called. A sign stands beside each word, so that colour is never all there is.

import { h } from "./dom.js";

export const STATES = {
  waiting: { label: "Waiting", sign: "…" },
  drafting: { label: "Drafting", sign: "✎" },
  drafted: { label: "Drafted", sign: "○" },
  edited: { label: "Edited", sign: "◐" },
  signed: { label: "Signed", sign: "●" },
  refused: { label: "Refused", sign: "✕" },
  rejected: { label: "Rejected", sign: "⊘" },
};

export function chip(state) {
  const { label, sign } = STATES[state];
  return h("span", { class: `chip state-${state}` }, h("span", { "aria-hidden": "true" }, sign), " ", label);
}
