// Two windows on two screens: the films in one, draft and list in the other. A channel of this browser keeps them in step.
//
// The window with the draft opened the other one. Where that closes, the films come back; where this one closes, the
// other one says so and leads to the draft.

import { ask } from "./api.js";
import { alarm, at, button, clearAlarm, h, redraw, say } from "./dom.js";
import { relay } from "./keys.js";
import { markSentences } from "./marks.js";

const KEPT = "radweave.windows";
const BOUNDS = "radweave.films-window";
const ANSWERED_MS = 300;

const given = new URLSearchParams(location.search).get("films");
/** Whether this window is the one with the films alone. */
export const isFilms = given !== null;

let channel = null;
let around = null;
let opened = null;
let answered = null;
let isApart = false;

/** The films in the other window, as the page knows a viewer; null where they are here. */
export const otherWindow = () => (isApart ? remote : null);
const remote = {
  showFinding: (finding) => tell({ finding }),
  hideMaps: () => tell({ finding: null }),
  showPrior: () => tell({ prior: true }),
  setBoxes() {}, // the films know the draft themselves
  markBoxes: (marked) => tell({ marked }),
  showBox: (box) => tell({ box }),
  destroy() {},
};

/** Tell the other window something, where there is one. */
export function tell(words) {
  channel?.postMessage(words);
}

function join(pair) {
  channel?.close();
  channel = new BroadcastChannel(`radweave.${pair}`);
  channel.onmessage = ({ data }) => (isFilms ? heardByFilms(data) : heardByText(data));
}

/** Find the other window. `parts` are the page, and what opens a study, does a key's action, and shows the images. */
export async function joinWindows(parts) {
  around = parts;
  const pair = given ?? sessionStorage.getItem(KEPT);
  if (!pair) return;
  join(pair);
  window.addEventListener("pagehide", () => tell({ left: true }));
  if (isFilms) {
    document.body.dataset.window = "films";
    relay((command) => tell({ key: command }));
    window.addEventListener("pagehide", keepBounds);
    tell({ here: around.page.id });
    return;
  }
  const waited = new Promise((done) => { answered = done; setTimeout(done, ANSWERED_MS); });
  tell({ study: around.page.id, hello: true });
  await waited;
}

function keepBounds() {
  localStorage.setItem(BOUNDS, `left=${screenX},top=${screenY},width=${innerWidth},height=${innerHeight}`);
}

/** Put the films into a window of their own, or take them back. */
export function toggleWindows() {
  if (isFilms) return;
  if (isApart) return tell({ close: true });
  const pair = crypto.getRandomValues(new Uint32Array(2)).join("");
  sessionStorage.setItem(KEPT, pair);
  join(pair);
  const bounds = localStorage.getItem(BOUNDS) ?? `left=${screen.availLeft + screen.availWidth},top=0,width=${screen.availWidth},height=${screen.availHeight}`;
  opened = window.open(`/studies/${around.page.id}?films=${pair}`, `films-${pair}`, `popup,${bounds}`);
  if (!opened) alarm("The browser did not let the page open a window. Allow windows of this address.");
}

function heardByText({ here, left, key, pointed }) {
  if (here !== undefined) {
    answered?.();
    if (here !== around.page.id) tell({ study: around.page.id });
    if (!isApart) part(true);
  }
  if (left && isApart) part(false);
  if (key !== undefined) around.act(key);
  if (pointed !== undefined) markSentences(pointed);
}

function part(on) {
  isApart = on;
  document.body.dataset.window = on ? "text" : "";
  if (on) window.addEventListener("pagehide", () => tell({ left: true }), { once: true });
  else at("queue").replaceChildren();
  around.show();
  drawQueue().catch(() => {});
  say(on ? "The films are in a window of their own." : "The films are here again.");
}

function heardByFilms({ study, hello, again, finding, prior, focus, left, close, marked, box }) {
  const { page, open, show } = around;
  if (close) return window.close();
  if (left) return alarm("The window with the draft was closed.", " ", button("Show the draft here", () => location.assign(`/studies/${page.id}`)));
  if (hello) {
    clearAlarm();
    tell({ here: study });
  }
  if (study !== undefined) open(study);
  if (again) show();
  if (finding !== undefined) page.mounting?.then((viewer) => (finding === null ? viewer.hideMaps() : viewer.showFinding(finding)));
  if (prior) page.mounting?.then((viewer) => viewer.showPrior());
  if (marked !== undefined) page.viewer?.markBoxes(marked);
  if (box !== undefined) page.mounting?.then((viewer) => viewer.showBox(box));
  if (focus) at("viewer").focus();
}

/** The studies that wait for a reader, beside the draft, where the films are elsewhere. */
export async function drawQueue() {
  if (!isApart) return;
  if (opened?.closed) return part(false); // it ended without a word
  const found = await Promise.all(["drafted", "edited"].map((state) => ask("GET", `/studies?${new URLSearchParams({ state, sort: "priority", descending: true, limit: 50 })}`)));
  if (!isApart) return;
  const rows = found.flatMap(({ studies }) => studies);
  redraw(at("queue"), h("h2", { id: "queue-title" }, `${found.reduce((sum, { total }) => sum + total, 0)} to read`),
    h("ol", { class: "queue" }, rows.map((one) => h("li", { "aria-current": one.id === around.page.id && "true" },
      h("a", { href: `/studies/${one.id}`, "data-focus": `queue-${one.id}`, onclick: (event) => follow(event, one.id) }, one.name),
      h("span", { class: "soft" }, [one.headers.patient_name, one.headers.modality, one.priority !== "routine" && one.priority, one.holder && (one.holder.is_own ? "you" : one.holder.user)].filter(Boolean).join(", "))))));
}

function follow(event, id) {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a tab of its own
  event.preventDefault();
  around.open(id);
}
