// Files, folders and archives that are dragged onto the page or chosen, sent as one form.

import { send } from "./api.js";
import { at, button, h, redraw } from "./dom.js";

const place = at("upload");
const mostFiles = Number(place.dataset.mostFiles);
const mostBytes = Number(place.dataset.mostBytes);
let isSending = false;

export const chooseFiles = () => at("files").click();

/** All files of an entry that was dropped: a file, or a folder with all below it. */
async function filesOf(entry, found) {
  if (found.length > mostFiles) return;
  const name = entry.fullPath.replace(/^\//, "");
  if (entry.isFile) {
    found.push({ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), name });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return;
    for (const one of some) await filesOf(one, found);
  }
}

function unique() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function submit(files, key = unique()) {
  const bytes = files.reduce((sum, { file }) => sum + file.size, 0);
  if (!files.length || isSending) return;
  if (files.length > mostFiles) return show(problem(`More than ${mostFiles} files; send them in parts.`));
  if (bytes > mostBytes) return show(problem(`${mib(bytes)} are more than the ${mib(mostBytes)} that one upload may have.`));
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Sent" });
  const words = h("span", { role: "status" }, `Sending ${count(files.length, "file")}, ${mib(bytes)}`);
  show(h("p", { class: "row" }, words, bar));
  isSending = true;
  try {
    const progress = (share) => {
      if (share === null) bar.removeAttribute("value");
      else bar.value = share;
      if (share === 1) words.textContent = "Sent; the server looks at it.";
    };
    const ids = await send(files, { one: at("one-study").checked, key, progress });
    show(h("p", { role: "status" }, `${count(ids.length, "study", "studies")} taken in.`));
    document.dispatchEvent(new CustomEvent("radweave:submitted", { detail: ids }));
  } catch (refusal) {
    // The same key again: where the first try did arrive, the second one is told so.
    const again = [0, 429, 503].includes(refusal.status) && button("Try again", () => submit(files, key));
    show(problem(refusal.wait ? `${refusal.message}. Try again in ${refusal.wait} s.` : refusal.message, again));
  } finally {
    isSending = false;
  }
}

const show = (content) => redraw(at("upload-state"), content);
const problem = (...words) => h("div", { class: "alert row spread", role: "alert" }, words);
const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(bytes < 2 ** 24 ? 1 : 0)} MiB`;
const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

for (const [chooser, input] of [["choose-files", "files"], ["choose-folder", "folder"]]) {
  at(chooser).addEventListener("click", () => at(input).click());
  at(input).addEventListener("change", (event) => {
    const files = [...event.target.files].map((file) => ({ file, name: file.webkitRelativePath || file.name }));
    event.target.value = "";
    submit(files);
  });
}

// The whole page takes what is dropped: else a file that misses the field would replace the page.
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  place.classList.add("over");
});
document.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) place.classList.remove("over");
});
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  place.classList.remove("over");
  // The entries are gone after the first wait.
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const plain = [...event.dataTransfer.files].map((file) => ({ file, name: file.name }));
  const found = [];
  try {
    for (const entry of entries) await filesOf(entry, found);
  } catch {
    return show(problem("A file or folder that was dropped cannot be read."));
  }
  submit(entries.length ? found : plain);
});
