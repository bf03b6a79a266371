// What a page of `radweave explain` does where scripts run: images are windowed and enlarged, texts are copied.

import { Embedded } from "./embedded.js";
import { openScan } from "./scan.js";
import { Radiographs } from "./viewer/radiographs.js";

const at = (id) => document.getElementById(id);

/** The viewer in place of the pictures, which stay for paper. */
async function show() {
  const { scan, images, maps } = JSON.parse(at("viewed").textContent);
  const place = at("viewer");
  const names = Object.keys(maps);
  place.hidden = false;
  const viewer = scan
    ? await openScan(place, { about: scan, maps, names })
    : new Radiographs(place, new Embedded(maps), { images, prior: [], maps: names, left_out: 0 });
  at("plain").classList.add("paper");
  for (const button of document.querySelectorAll("button[data-map]")) {
    button.hidden = !names.includes(button.dataset.map);
    button.addEventListener("click", () => {
      viewer.showFinding(button.dataset.map);
      place.scrollIntoView({ block: "nearest" });
      viewer.focus();
    });
  }
}

async function copy(button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    done = copiedByHand(button.dataset.copy);
  }
  at("said").textContent = done ? `Copied: ${button.textContent.replace("Copy ", "")}.` : "This browser does not let the page copy.";
  button.focus();
}

/** For browsers that give a page from a file no clipboard. */
function copiedByHand(text) {
  const field = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}
for (const slider of document.querySelectorAll("input[data-opacity]")) {
  slider.parentElement.hidden = false;
  slider.addEventListener("input", () => slider.closest("figure").style.setProperty("--heat", slider.value));
}
if (at("viewed")) {
  show().catch((problem) => {
    at("viewer").hidden = true;
    at("plain").classList.remove("paper");
    at("said").textContent = `The images stay as they are: ${problem.message}`;
  });
}
