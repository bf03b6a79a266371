// In place of the image viewer until it is here.

/** Show a study's images in an element. */
export async function mountViewer(element, { study, csrf }) {
  element.textContent = "no viewer";
  return { showFinding() {}, hideMaps() {}, showPrior() {}, destroy() { element.replaceChildren(); } };
}
