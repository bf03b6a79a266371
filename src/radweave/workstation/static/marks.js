// What belongs together is marked together: a sentence, its boxes on the films, its findings and its recalled cases, from whichever the pointer or the focus is on.

const namesOf = (element) => JSON.parse(element.dataset.about);
const listeners = new Set();

/** What an element is about, for its attributes: findings and numbers of recalled cases. */
export const about = (findings, cases = []) => ({ "data-about": JSON.stringify([...findings.map((name) => `finding ${name}`), ...cases.map((number) => `case ${number}`)]) });

/** Call a function with the keys of the sentences whose boxes are marked. */
export const onMarked = (changed) => listeners.add(changed);

function mark({ target }) {
  if (target.closest?.(".rv-film")) return; // films say what box the pointer is on
  const here = target.closest?.("[data-about]");
  const names = new Set(here ? namesOf(here) : []);
  const isSentence = (one) => one?.dataset.key !== undefined;
  for (const one of document.querySelectorAll("[data-about]")) one.classList.toggle("marked", !(one === here || (isSentence(one) && isSentence(here))) && namesOf(one).some((name) => names.has(name)));
  told(!isSentence(here) ? keysOf(".marked[data-key]") : [Number(here.dataset.key)]);
}

const keysOf = (selector) => [...document.querySelectorAll(selector)].map((one) => Number(one.dataset.key));

/** Mark sentences whose box the pointer is on. */
export function markSentences(keys) {
  for (const one of document.querySelectorAll("[data-about]")) one.classList.toggle("marked", keys.includes(Number(one.dataset.key ?? NaN)));
  told(keys);
}

/** Where nothing else is pointed at, the boxes of the chosen sentence stay marked. */
function told(keys) {
  const marked = keys.length ? keys : keysOf(".sentence.current");
  for (const changed of listeners) changed(marked);
}

document.addEventListener("pointerover", mark);
document.addEventListener("focusin", mark);
