// A finding's map over an image: sampled where the screen has it, whatever way the image is turned, and a line at half of its peak.

import { LINE_AT, RAMP } from "./colours.js";
import { made } from "./elements.js";

const FINENESS = 3;
const between = (value, most) => Math.min(Math.max(value, 0), most);

/** A map's value at shares of the image along each axis, linear between the middles of its cells; -1 outside of what it covers. */
export function sampled({ shape, covers, values }, shares) {
  let cells = [[0, 1]];
  for (let axis = 0; axis < shape.length; axis += 1) {
    const inside = (shares[axis] - covers[axis][0]) / covers[axis][1];
    if (inside < 0 || inside >= 1) return -1;
    const place = between(inside * shape[axis] - 0.5, shape[axis] - 1);
    const low = Math.floor(place);
    const [high, part] = [Math.min(low + 1, shape[axis] - 1), place - low];
    cells = cells.flatMap(([at, weight]) => [[at * shape[axis] + low, weight * (1 - part)], [at * shape[axis] + high, weight * part]]);
  }
  return cells.reduce((sum, [at, weight]) => sum + (weight ? values[at] * weight : 0), 0);
}

/** Where a map's peak lies, in shares of the image. */
export function peakOf({ shape, covers, values }) {
  let rest = values.indexOf(Math.max(...values));
  return shape.map((_, axis) => {
    const step = shape.slice(axis + 1).reduce((product, length) => product * length, 1);
    const place = Math.floor(rest / step);
    rest -= place * step;
    return covers[axis][0] + ((place + 0.5) / shape[axis]) * covers[axis][1];
  });
}

export class MapLayer {
  constructor() {
    this.canvas = made("canvas", { class: "rv-map", "aria-hidden": "true" });
    [this.grid, this.opacity] = [null, 0.6];
  }

  get isShown() {
    return this.grid !== null;
  }

  draw(film) {
    this.canvas.hidden = !this.isShown;
    if (!this.isShown) return;
    const [width, height] = [film.view.clientWidth, film.view.clientHeight].map((length) => Math.max(1, Math.ceil(length / FINENESS)));
    Object.assign(this.canvas, { width, height });
    this.canvas.style.opacity = this.opacity;
    const [zero, right, down] = [[0, 0], [FINENESS, 0], [0, FINENESS]].map((place) => this.sharesAt(film, place));
    const steps = new Int16Array(width * height);
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const shares = zero.map((share, axis) => share + (x + 0.5) * (right[axis] - share) + (y + 0.5) * (down[axis] - share));
        steps[y * width + x] = Math.round(sampled(this.grid, shares));
      }
    }
    const image = new ImageData(width, height);
    for (let at = 0; at < steps.length; at += 1) {
      if (steps[at] >= 0) image.data.set(isBorder(steps, at, width) ? [255, 255, 255, 255] : RAMP[steps[at]], 4 * at);
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }

  sharesAt(film, place) {
    if (film.plane) return film.subject.shares(film.viewport.canvasToWorld(place));
    const { width, height } = film.size;
    const [x, y] = film.toImage(place);
    return [y / height, x / width];
  }
}

function isBorder(steps, at, width) {
  const inside = steps[at] >= 255 * LINE_AT;
  const right = (at + 1) % width === 0 ? at : at + 1;
  const below = at + width < steps.length ? at + width : at;
  const differs = (other) => steps[other] >= 0 && inside !== steps[other] >= 255 * LINE_AT; // no line where the map ends
  return differs(right) || differs(below);
}
