// A magnifier: the pixels around the pointer, three times as large as on the film and in its window.

import { made } from "./elements.js";

const SIZE = 260;
const TIMES = 3;

export class Lens {
  constructor() {
    this.canvas = Object.assign(made("canvas", { class: "rv-lens", "aria-hidden": "true" }), { width: SIZE, height: SIZE });
  }

  hide() {
    this.canvas.remove();
  }

  /** Lay it over a film, around a place of its element. */
  show(film, [x, y]) {
    const { range: { lower, upper }, size: { width, height }, subject } = film;
    const { scalarData: numbers } = film.viewport.getImageData();
    const id = film.viewport.getCurrentImageId();
    const isTurned = film.viewport.getProperties().invert;
    const isValue = id.endsWith("/values");
    const zero = film.toImage([x - SIZE / 2 / TIMES, y - SIZE / 2 / TIMES]);
    // One dot of the lens to the right and down, in pixels of the image.
    const [across, along] = [[1 / TIMES, 0], [0, 1 / TIMES]].map(([dx, dy]) => film.toImage([x + dx, y + dy]).map((at, axis) => at - film.toImage([x, y])[axis]));
    const image = new ImageData(SIZE, SIZE);
    for (let row = 0; row < SIZE; row += 1) {
      for (let column = 0; column < SIZE; column += 1) {
        const at = [0, 1].map((axis) => Math.floor(zero[axis] + column * across[axis] + row * along[axis]));
        const number = at[0] >= 0 && at[1] >= 0 && at[0] < width && at[1] < height ? numbers[at[1] * width + at[0]] : null;
        const share = number === null ? 0 : Math.min(Math.max(((isValue ? subject.valueOf(number, id) : number) - lower) / (upper - lower), 0), 1);
        const grey = number === null ? 0 : Math.round(255 * (isTurned ? 1 - share : share));
        image.data.set([grey, grey, grey, 255], 4 * (row * SIZE + column));
      }
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
    Object.assign(this.canvas.style, { left: `${x - SIZE / 2}px`, top: `${y - SIZE / 2}px` });
    film.element.append(this.canvas);
  }
}
