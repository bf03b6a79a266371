// The patient's study before this one: what changed since, and another choice where the headers say nothing.

import { ask } from "./api.js";
import { alarm, at, button, h, redraw, say, time } from "./dom.js";

let isChoosing = false;
let search = "";
let asked = 0;

const FOUND = {
  headers: "found by the headers of both studies", archive: "found in an archive", hand: "chosen by a reader", "data set": "the data set names it",
};

/** Another study is shown. */
export function forgetPrior() {
  [isChoosing, search] = [false, ""];
  asked += 1;
}

/** Ask which study is the prior; the page's parts draw it. */
export async function loadPrior(page) {
  const { id } = page;
  const prior = await ask("GET", `/studies/${id}/prior`);
  if (id === page.id) page.prior = prior;
}

export function drawPrior(page) {
  const { prior, may_choose: mayChoose } = page.prior ?? {};
  redraw(at("prior"), h("h2", { id: "prior-title", tabindex: "-1" }, "Since the prior"), prior ? [about(page, prior), since(page, prior)] : h("p", { class: "soft" }, "No earlier study of this patient is known here."),
    mayChoose && chooser(page, prior));
  if (at("prior-choices")) list(page);
}

function about(page, prior) {
  const days = prior.days === null ? null : prior.days === 0 ? "on the same day" : `${prior.days} ${prior.days === 1 ? "day" : "days"} before`;
  return h("p", { class: "soft" }, [prior.name, days, FOUND[prior.found_by] ?? prior.found_by].filter(Boolean).join("; "), ". ",
    prior.report !== null && !prior.is_signed && h("b", {}, "Nobody has signed its report. "),
    page.study.draft && !prior.was_used && h("b", {}, "The draft was made without it."));
}

function since(page, prior) {
  const heads = ["Finding", prior.is_signed ? "Prior report" : "Draft of the prior", "The model's draft", "Change"];
  const rows = prior.changes.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td", {}, one.before), h("td", {}, one.now), h("td", {}, h("b", {}, one.change))));
  const table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Changes" }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows)));
  return [
    prior.report !== null && h("p", { class: "soft" }, "What both texts name, read by rules; whether it is so, the images show."),
    rows.length ? table : h("p", {}, prior.report === null ? "It has no text to compare with." : "Neither text names a finding."),
    h("div", { class: "cards beside" },
      h("article", { class: "card" }, h("h3", {}, prior.id ? h("a", { href: `/studies/${prior.id}` }, `Before: ${prior.name}`) : `Report of the study before: ${prior.name}`), h("p", { class: "lines-kept" }, prior.report ?? "It has no report.")),
      page.study.draft && h("article", { class: "card" }, h("h3", {}, "This draft, as it is now"), h("p", { class: "lines-kept" }, page.study.draft.text))),
    h("p", {}, button("Show the image before this one", () => showPrior(page), { focus: "prior-image" })),
  ];
}

/** Show its images beside the study's, once those are there. */
export const showPrior = async (page) => (await page.mounting?.catch(() => null))?.showPrior();

function chooser(page, prior) {
  const toggle = button(prior ? "Another study is the prior" : "Choose the prior", () => { isChoosing = !isChoosing; drawPrior(page); }, { focus: "choose-prior", "aria-expanded": String(isChoosing) });
  const none = prior && button("It has no prior", () => choose(page, null), { focus: "no-prior" });
  if (!isChoosing) return h("p", { class: "row" }, toggle, none);
  const field = h("input", { id: "prior-search", type: "search", maxlength: "200", autocomplete: "off", "data-focus": "prior-search", oninput: (event) => { search = event.target.value; list(page); } });
  field.value = search;
  return h("div", { class: "card" }, h("p", { class: "row" }, toggle, none),
    h("p", { class: "row" }, h("label", { for: "prior-search" }, "Search by name"), field), h("ul", { id: "prior-choices", class: "lines" }));
}

async function list(page) {
  const number = (asked += 1);
  try {
    const { studies } = await ask("GET", `/studies/${page.id}/priors?${new URLSearchParams({ search })}`);
    const place = at("prior-choices");
    const shown = JSON.stringify(studies);
    if (number !== asked || !place || place.dataset.shown === shown) return; // a button that is being pressed stays
    place.dataset.shown = shown;
    redraw(place, studies.length ? studies.map((one) => h("li", {}, h("span", {}, one.name, h("span", { class: "soft" }, ", received ", time(one.created))),
      button("Take it", () => choose(page, one.id), { focus: `prior-${one.id}`, "aria-label": `Take ${one.name} as the prior` }))) : h("li", {}, "No study of yours fits."));
  } catch (problem) {
    alarm(problem);
  }
}

async function choose(page, id) {
  try {
    page.prior = await ask("PUT", `/studies/${page.id}/prior`, { prior: id });
    isChoosing = false;
    drawPrior(page);
    at("prior-title").focus();
    say(id ? `${page.prior.prior.name} is the prior.` : "The study has no prior.");
    await page.showImages();
  } catch (problem) {
    alarm(problem);
  }
}
