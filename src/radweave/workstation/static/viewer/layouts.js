// Hanging protocols: which images stand where, at first and on request. What a reader chose is there again.

import { PLANES } from "./subjects.js";

export const isFrontal = (subject) => subject.view !== "LATERAL";
const user = document.querySelector('meta[name="user"]')?.content ?? "";
const place = (modality) => `radweave.layout.${user}.${modality}`;

/** Layouts as [name, words] that these subjects allow. */
export function layoutsFor(modality, own, prior) {
  if (modality === "CT") return [["planes", "Three planes"], ...PLANES.map((plane) => [plane, plane[0].toUpperCase() + plane.slice(1)]), ...(prior.length ? [["prior", "Beside the prior"]] : [])];
  return [["one", "One image"], ...(own.length > 1 ? [["two", "Two views"]] : []), ...(prior.length ? [["prior", "Beside the prior"]] : [])];
}

/** The layout to begin with: the reader's last one where it fits. */
export function firstLayout(modality, own, prior) {
  const kept = localStorage.getItem(place(modality));
  const known = layoutsFor(modality, own, prior).map(([name]) => name);
  if (known.includes(kept)) return kept;
  if (modality === "CT") return "planes";
  return own.some(isFrontal) && own.some((one) => !isFrontal(one)) ? "two" : "one";
}

export const keepLayout = (modality, name) => localStorage.setItem(place(modality), name);

/** What stands in the films of a layout, as [subject, plane]; `main` is the subject that is read. */
export function hung(name, main, own, prior) {
  const plane = PLANES.includes(name) ? name : "axial";
  if (name === "planes") return PLANES.map((one) => [main, one]);
  if (name === "prior") return [[main, main.planes[0]], [alike(main, prior), main.planes[0]]];
  if (name === "two") return [main, own.find((one) => one !== main && isFrontal(one) !== isFrontal(main)) ?? own.find((one) => one !== main)].map((one) => [one, null]);
  return [[main, main.planes.includes(plane) ? plane : null]];
}

/** Of the prior's images one of the same view. */
export const alike = (main, prior) => prior.find((one) => isFrontal(one) === isFrontal(main) && !one.problem) ?? prior[0];

/** The image to read first: a frontal one that can be shown. */
export const mainOf = (own) => own.find((one) => !one.problem && isFrontal(one)) ?? own[0];
