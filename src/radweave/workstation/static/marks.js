// What belongs together is marked together: a sentence, its findings and its recalled cases, from whichever the pointer or the focus is on.

const namesOf = (element) => JSON.parse(element.dataset.about);

/** What an element is about, for its attributes: findings and numbers of recalled cases. */
export const about = (findings, cases = []) => ({ "data-about": JSON.stringify([...findings.map((name) => `finding ${name}`), ...cases.map((number) => `case ${number}`)]) });

function mark({ target }) {
  const here = target.closest?.("[data-about]");
  const names = new Set(here ? namesOf(here) : []);
  for (const one of document.querySelectorAll("[data-about]")) one.classList.toggle("marked", one !== here && namesOf(one).some((name) => names.has(name)));
}

document.addEventListener("pointerover", mark);
document.addEventListener("focusin", mark);
