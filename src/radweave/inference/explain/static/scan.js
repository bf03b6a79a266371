// A scan as the viewer of radiographs shows it: each plane is an image, a slider chooses the slice.

import { inflated } from "./embedded.js";
import { made } from "./viewer/elements.js";
import { Radiographs } from "./viewer/radiographs.js";
import { wordsOf } from "./viewer/words.js";

const PLANES = [["axial", ["L", "P"]], ["coronal", ["L", "F"]], ["sagittal", ["P", "F"]]];

const between = (value, low, high) => Math.min(Math.max(value, low), high);

/** Rows and columns of a slice of values (z, y, x). */
const sizeOf = ([depth, height, width], axis) => [axis === 0 ? height : depth, axis === 2 ? height : width];

/** A slice as radiologists look at it: with the head on top, where it is seen from the front or from the side. */
export function sliceOf(values, shape, axis, index) {
  const [, height, width] = shape;
  const [rows, columns] = sizeOf(shape, axis);
  const found = new values.constructor(rows * columns);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const at = axis === 0 ? [index, row, column] : axis === 1 ? [rows - 1 - row, index, column] : [rows - 1 - row, column, index];
      found[row * columns + column] = values[(at[0] * height + at[1]) * width + at[2]];
    }
  }
  return found;
}

/** A slice of a map at a share of an axis, linear between the middles of its cells. */
export function mapAt(values, shape, axis, share) {
  const position = between(share * shape[axis] - 0.5, 0, shape[axis] - 1);
  const low = Math.floor(position);
  const [one, other] = [low, Math.min(low + 1, shape[axis] - 1)].map((index) => sliceOf(values, shape, axis, index));
  return Array.from(one, (value, place) => value + (position - low) * (other[place] - value));
}

/** The voxel where a map is highest, as shares along z, y and x. */
export function peakOf(values, [depth, height, width]) {
  const peak = values.reduce((best, value, place) => (value > values[best] ? place : best), 0);
  return [(Math.floor(peak / (height * width)) + 0.5) / depth, ((Math.floor(peak / width) % height) + 0.5) / height, ((peak % width) + 0.5) / width];
}

class Slices {
  /** `about` says what the words of a scan stand for; `moved` is called when a map asks for another place. */
  constructor(about, words, maps, moved) {
    Object.assign(this, { about, words: (plane) => this.slice(plane), values: words, maps, moved, finding: null });
    this.at = about.shape.map((count) => Math.floor(count / 2));
  }

  get images() {
    const { shape, spacing_mm: spacing, ...about } = this.about;
    return PLANES.map(([name, orientation], axis) => {
      const [down, across] = [axis === 0 ? 1 : 0, axis === 2 ? 1 : 2];
      const [rows, columns] = sizeOf(shape, axis);
      return { ...about, name, view: name, rows, columns, orientation, pixel_ratio: spacing[down] / spacing[across] };
    });
  }

  async slice(plane) {
    const axis = PLANES.findIndex(([name]) => name === plane);
    return sliceOf(this.values, this.about.shape, axis, this.at[axis]);
  }

  /** The map of a finding on the slices that are shown; a new finding goes to its peak first. */
  async map(finding) {
    const { shape, values, ...map } = this.maps[finding];
    if (finding !== this.finding) {
      this.finding = finding;
      this.at = peakOf(values, shape).map((share, axis) => between(Math.floor(share * this.about.shape[axis]), 0, this.about.shape[axis] - 1));
      this.moved();
    }
    const grids = PLANES.map(([image], axis) => ({
      image, shape: sizeOf(shape, axis), covers: [[0, 1], [0, 1]], values: mapAt(values, shape, axis, (this.at[axis] + 0.5) / this.about.shape[axis]),
    }));
    return { ...map, grids };
  }
}

/** Show a scan in an element: what the viewer of radiographs gives. */
export async function openScan(element, { about, maps, names }) {
  const values = wordsOf(await inflated("words-scan"));
  const sliders = PLANES.map(([name], axis) => made("input", { type: "range", min: 1, max: about.shape[axis], step: 1, "aria-label": `${name} slice`, oninput: (event) => go(axis, Number(event.target.value) - 1) }));
  const told = PLANES.map(() => made("output", {}));
  let shown = null;
  const source = new Slices(about, values, maps, () => {
    say();
    shown?.again();
  });

  function say() {
    for (const [axis, slider] of sliders.entries()) {
      slider.value = source.at[axis] + 1;
      told[axis].textContent = `${PLANES[axis][0]} ${source.at[axis] + 1} of ${about.shape[axis]}`;
    }
  }

  function go(axis, index) {
    source.at[axis] = between(index, 0, about.shape[axis] - 1);
    say();
    return shown.again();
  }

  const images = made("div");
  const keys = "On an image: Page up and Page down go through its slices.";
  element.replaceChildren(images, made("div", { class: "slices" }, sliders.map((slider, axis) => made("label", {}, told[axis], slider)), made("p", { class: "soft" }, keys)));
  shown = new Radiographs(images, source, { images: source.images, prior: [], maps: names, left_out: 0 });
  images.addEventListener("keydown", (event) => {
    const step = { PageUp: 1, PageDown: -1 }[event.key];
    if (!step || !event.target.closest(".rv-stage")) return;
    event.preventDefault();
    const axis = PLANES.findIndex(([name]) => name === shown.pane.image.name);
    go(axis, source.at[axis] + step);
  });
  say();
  return shown;
}
