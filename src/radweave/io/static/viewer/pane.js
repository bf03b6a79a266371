// One radiograph on a canvas: its window, its place, a map over it. What is done to it comes from outside.

import { drawGrid } from "./colours.js";
import { choice, made } from "./elements.js";
import { levelsOf, visible } from "./levels.js";
import { greyTable, moved } from "./window.js";

const LEAST = 0.2;
const MOST = 40;
const SMOOTH_BELOW = 4;
const OPPOSITE = { A: "P", P: "A", R: "L", L: "R", H: "F", F: "H" };

/** How an image is called in lists. */
export function nameOf(image) {
  const view = image.view && image.view !== "UNKNOWN" ? image.view.toLowerCase().replace(/^(pa|ap)$/, (word) => word.toUpperCase()) : "image";
  return `${image.name.startsWith("prior-") ? "before: " : ""}${view}, ${image.file}`;
}

export class Pane {
  /** `images` to choose from; `on` are listeners: chosen(name), active(), drawn(). */
  constructor(label, images, on) {
    this.on = on;
    this.image = null;
    this.words = null;
    this.table = null;
    this.inverted = false;
    this.preset = null;
    this.zoom = 1;
    this.middle = [0.5, 0.5];
    this.map = null;
    this.opacity = 0.6;
    this.pending = 0;
    this.grey = document.createElement("canvas");
    this.canvas = made("canvas", { class: "rv-canvas" });
    this.pick = choice(`Image of ${label.toLowerCase()}`, images.map((image) => [image.name, nameOf(image)]), (name) => on.chosen(name), { class: "rv-pick" });
    this.corners = Object.fromEntries(["top", "left", "right", "bottom"].map((side) => [side, made("div", { class: `rv-corner rv-${side}`, "aria-hidden": "true" })]));
    this.stage = made("div", { class: "rv-stage", tabindex: "0", role: "application", "aria-roledescription": "radiograph", "aria-describedby": "rv-keys", onfocus: () => on.active() },
      this.canvas, Object.values(this.corners));
    this.element = made("section", { class: "rv-pane", "aria-label": label }, this.pick, this.stage);
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.stage);
  }

  destroy() {
    this.observer.disconnect();
    cancelAnimationFrame(this.pending);
    this.element.remove();
  }

  /** Nothing yet, and why. */
  waiting(image, words) {
    this.image = image;
    this.words = null;
    this.map = null;
    this.pick.value = image.name;
    this.say(words);
    this.redraw();
  }

  show(image, words, table) {
    this.image = image;
    [this.words, this.table, this.map] = [words, table, null];
    this.levels = levelsOf(words, image.columns, image.rows, image.padding);
    this.pick.value = image.name;
    this.reset();
  }

  /** Other values of the same image, such as another slice: window, zoom and place stay. */
  exchange(words) {
    const { image } = this;
    this.words = words;
    this.levels = levelsOf(words, image.columns, image.rows, image.padding);
    [this.stale, this.painted] = [true, null];
    this.redraw();
  }

  get span() {
    const whole = this.image.presets.at(-1);
    return { low: whole.center - whole.width / 2, size: whole.width };
  }

  reset() {
    this.inverted = false;
    this.setPreset(0);
    this.place(1, [0.5, 0.5]);
  }

  setPreset(index) {
    if (!this.words) return;
    this.setWindow(this.image.presets[Math.min(index, this.image.presets.length - 1)]);
  }

  /** Move the window by shares of its width. */
  drag(across, down) {
    if (this.words) this.setWindow(moved(this.preset, across, down, this.span));
  }

  setWindow(preset) {
    this.preset = preset;
    this.stale = true;
    this.redraw();
  }

  invert(on) {
    this.inverted = on;
    this.stale = true;
    this.redraw();
  }

  /** `zoom` is against the size that fits; `middle` is what stands in the middle, in shares of the image. */
  place(zoom, middle) {
    this.zoom = Math.min(Math.max(zoom, LEAST), MOST);
    this.middle = middle.map((share) => Math.min(Math.max(share, 0), 1));
    this.redraw();
  }

  /** Zoom so that the point under (x, y), in CSS pixels of the stage, stays. */
  zoomAt(factor, x, y) {
    const zoom = Math.min(Math.max(this.zoom * factor, LEAST), MOST);
    const [width, height] = this.size();
    const gained = 1 / this.zoom - 1 / zoom;
    const point = [(x - this.stage.clientWidth / 2) / width, (y - this.stage.clientHeight / 2) / height];
    this.place(zoom, this.middle.map((share, axis) => share + point[axis] * gained));
  }

  /** Width and height that fit, in CSS pixels. */
  size() {
    const { columns, rows, pixel_ratio: ratio } = this.image;
    const fit = Math.min(this.stage.clientWidth / columns, this.stage.clientHeight / (rows * ratio));
    return [columns * fit, rows * ratio * fit];
  }

  /** The zoom at which a pixel of the image is one of the screen. */
  get actual() {
    return this.image.columns / window.devicePixelRatio / this.size()[0];
  }

  setMap(grid, opacity) {
    this.map = grid ? { covers: grid.covers, canvas: drawGrid(grid) } : null;
    this.opacity = opacity;
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  draw() {
    const dots = window.devicePixelRatio;
    const { canvas, stage } = this;
    const [across, down] = [Math.round(stage.clientWidth * dots), Math.round(stage.clientHeight * dots)];
    if (canvas.width !== across || canvas.height !== down) Object.assign(canvas, { width: across, height: down });
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#000";
    pen.fillRect(0, 0, across, down);
    if (!this.words || !across || !down) return;
    const [width, height] = this.size().map((length) => length * this.zoom * dots);
    const scale = width / this.image.columns;
    const exact = Math.abs(scale - 1) < 1e-6 && this.image.pixel_ratio === 1;
    const [drawnWidth, drawnHeight] = exact ? [this.image.columns, this.image.rows] : [width, height];
    const left = Math.round(across / 2 - this.middle[0] * drawnWidth);
    const top = Math.round(down / 2 - this.middle[1] * drawnHeight);
    pen.imageSmoothingEnabled = !exact && scale < SMOOTH_BELOW;
    pen.imageSmoothingQuality = "medium";
    const part = visible(this.levels, [left, top, drawnWidth, drawnHeight], [across, down]);
    if (part.wide > 0 && part.tall > 0) {
      this.paint(part);
      pen.drawImage(this.grey, ...part.at);
    }
    if (this.map) this.drawMap(pen, left, top, drawnWidth, drawnHeight);
    this.describe(scale, left, top);
  }

  /** The part of a level in grey, if it is not there already. */
  paint({ number, x, y, wide, tall }) {
    const key = [this.image.name, number, x, y, wide, tall].join();
    if (!this.stale && this.painted === key) return;
    if (this.stale) this.colours = coloursOf(greyTable(this.image, this.preset, { inverted: this.inverted, table: this.table }));
    const { colours } = this;
    const { words, columns } = this.levels[number];
    const pixels = new ImageData(wide, tall);
    const target = new Uint32Array(pixels.data.buffer);
    for (let row = 0; row < tall; row += 1) {
      const from = (y + row) * columns + x;
      for (let column = 0; column < wide; column += 1) target[row * wide + column] = colours[words[from + column]];
    }
    Object.assign(this.grey, { width: wide, height: tall });
    this.grey.getContext("2d").putImageData(pixels, 0, 0);
    [this.stale, this.painted] = [false, key];
  }

  drawMap(pen, left, top, width, height) {
    const [[down, tall], [across, wide]] = this.map.covers;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.globalAlpha = this.opacity;
    pen.imageSmoothingEnabled = true;
    pen.drawImage(this.map.canvas, left + across * width, top + down * height, wide * width, tall * height);
    pen.restore();
  }

  say(words) {
    this.corners.top.textContent = words;
    this.corners.left.textContent = this.corners.right.textContent = this.corners.bottom.textContent = "";
    this.stage.setAttribute("aria-label", words);
  }

  /** The corners, the words for who listens, and figures for tests. */
  describe(scale, left, top) {
    const { image, preset, stage } = this;
    const [center, width] = [preset.center, preset.width].map((value) => (value === undefined ? "" : round(value)));
    const windowed = preset.function === "TABLE" ? preset.name : `level ${center} width ${width}`;
    const zoomed = `${Math.round((100 * scale) / window.devicePixelRatio)} %`;
    const sides = { L: "left side", R: "right side" }[image.laterality];
    const [row] = image.orientation;
    this.corners.top.textContent = [nameOf(image), sides].filter(Boolean).join(", ");
    this.corners.left.textContent = OPPOSITE[row?.[0]] ?? "";
    this.corners.right.textContent = row?.[0] ?? "";
    this.corners.bottom.textContent = [windowed, this.inverted && "inverted", zoomed, `${image.columns} × ${image.rows}`].filter(Boolean).join(" · ");
    stage.setAttribute("aria-label", `${nameOf(image)}: ${windowed}, ${this.inverted ? "inverted, " : ""}${zoomed}`);
    const facts = { image: image.name, function: preset.function, center: preset.center ?? "", width: preset.width ?? "", inverted: this.inverted, scale, left, top, map: Boolean(this.map) };
    Object.assign(this.canvas.dataset, facts);
    this.on.drawn();
  }
}

/** Of each word its grey, three times and opaque, as canvases have it. */
function coloursOf(greys) {
  const bytes = new Uint8Array(4 * greys.length);
  for (let word = 0; word < greys.length; word += 1) bytes.fill(greys[word], 4 * word, 4 * word + 3);
  for (let place = 3; place < bytes.length; place += 4) bytes[place] = 255;
  return new Uint32Array(bytes.buffer);
}

/** Five figures that count, and no more. */
export const round = (value) => Number(value.toPrecision(5));
