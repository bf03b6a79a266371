// The report as other systems read it, and what was sent to archives.

import { ask, fetched } from "./api.js";
import { alarm, at, button, h, redraw, time } from "./dom.js";

const FORMATS = {
  pdf: "PDF", text: "plain text", fhir: "FHIR R4", "fhir-r5": "FHIR R5", hl7: "HL7 v2", "sr-tid1500": "DICOM SR (TID 1500)",
  "sr-basic": "DICOM Basic Text SR", "pdf-dicom": "PDF in DICOM", "map-dicom": "maps as DICOM", "box-dicom": "boxes as DICOM",
};

export async function drawExports(page) {
  const choice = h("select", { id: "format", "data-focus": "format" }, Object.entries(FORMATS).map(([name, words]) => h("option", { value: name }, words)));
  choice.value = at("format")?.value ?? "pdf";
  if (page.study.state === "rejected") return redraw(at("exports"), h("h2", { id: "exports-title" }, "The report as a file"), h("p", {}, "The draft was rejected: there is no report."));
  const signed = page.study.state === "signed" ? "" : " It is not signed, and says so.";
  const top = [h("h2", { id: "exports-title" }, "The report as a file"),
    h("p", { class: "row" }, h("label", { for: "format" }, "Format"), choice, button("Download", () => download(page, choice.value), { focus: "download" }),
      h("span", { class: "soft" }, `Version ${page.study.version}.${signed}`))];
  redraw(at("exports"), top);
  const { id } = page;
  const rows = await ask("GET", `/studies/${id}/sent`).catch(() => []);
  if (rows.length && id === page.id) redraw(at("exports"), top, table(rows));
}

async function download(page, format) {
  try {
    const { blob, name } = await fetched(`/studies/${page.id}/report?format=${format}`);
    const href = URL.createObjectURL(blob);
    h("a", { href, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(href), 10_000);
  } catch (problem) {
    alarm(problem);
  }
}

const table = (rows) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Sent" }, h("table", {}, h("caption", {}, "What is sent to archives"),
  h("thead", {}, h("tr", {}, ["To", "Format", "What", "Version", "State", "Receipt", "Changed"].map((text) => h("th", { scope: "col" }, text)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, [row.target, row.format, row.event, String(row.version ?? ""), row.state, row.receipt ?? ""].map((text) => h("td", {}, String(text))), h("td", {}, time(row.changed)))))));
