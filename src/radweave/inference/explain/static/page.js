// What a page of `radweave explain` does where scripts run: maps fade, texts are copied, sentences and their boxes light up together.

const at = (id) => document.getElementById(id);

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

/** Mark the sentence and the boxes that belong to what the pointer or the focus is on. */
function light({ target }) {
  const numbers = target.closest?.("[data-sentences]")?.dataset.sentences.split(" ") ?? [];
  for (const one of document.querySelectorAll("[data-sentences]")) {
    one.classList.toggle("lit", one.dataset.sentences.split(" ").some((number) => numbers.includes(number)));
  }
}
document.addEventListener("pointerover", light);
document.addEventListener("focusin", light);
