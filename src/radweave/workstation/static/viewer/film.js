// One image on the screen: a viewport of cornerstone3D with what stands over it: texts, orientation, scale, map, planes.

import { Enums } from "../vendor/cornerstone/cornerstone.js";
import { BoxLayer } from "./boxlayer.js";
import { MapLayer } from "./maplayer.js";
import { made } from "./elements.js";
import { patientLines } from "./patient.js";
import { rangeOf, windowOf } from "./subjects.js";

const OPPOSITE = { L: "R", R: "L", A: "P", P: "A", H: "F", F: "H" };
const LENGTHS = [200, 100, 50, 20, 10, 5, 2, 1];
const corner = (place) => made("p", { class: `rv-corner rv-${place}`, "aria-hidden": "true" });
const round = (value) => Number(value.toPrecision(5));

export class Film {
  /** `on` are listeners: active(film), changed(film, what) with what one of "window", "view", "slice", pointed(keys). */
  constructor(id, engine, on, marks) {
    [this.id, this.engine, this.on, this.subject, this.plane, this.slab, this.preset, this.invert] = [id, engine, on, null, null, 0, null, false];
    this.view = made("div", { class: "rv-view" });
    this.layer = new MapLayer();
    this.boxes = new BoxLayer(marks);
    this.corners = Object.fromEntries(["nw", "ne", "sw", "se"].map((place) => [place, corner(place)]));
    this.sides = Object.fromEntries(["left", "right", "top", "bottom"].map((side) => [side, made("span", { class: `rv-side rv-${side}`, "aria-hidden": "true" })]));
    this.scale = made("span", { class: "rv-scale", "aria-hidden": "true" });
    this.lines = { across: made("span", { class: "rv-line", "aria-hidden": "true" }), down: made("span", { class: "rv-line", "aria-hidden": "true" }) };
    this.note = made("p", { class: "rv-note", role: "status" });
    this.element = made("section", {
      class: "rv-film", tabindex: "0", role: "application", "aria-roledescription": "image", "aria-describedby": "rv-keys", onfocus: () => on.active(this),
      onpointerdown: () => this.element.focus({ preventScroll: true }), oncontextmenu: (event) => event.preventDefault(), onpointermove: (event) => this.probe(event), onpointerleave: () => on.pointed([]),
    }, this.view, this.layer.canvas, this.boxes.svg, Object.values(this.lines), Object.values(this.sides), Object.values(this.corners), this.scale, this.note);
    this.watched = new ResizeObserver(() => this.fit());
    const { VOI_MODIFIED, CAMERA_MODIFIED, STACK_NEW_IMAGE, IMAGE_RENDERED } = Enums.Events;
    this.view.addEventListener(VOI_MODIFIED, ({ detail }) => this.windowed(detail.range));
    // The library takes a new slice's own window for the one in force, though it shows the slice in that one.
    this.view.addEventListener(STACK_NEW_IMAGE, () => this.isShown && this.range && this.viewport.setProperties({ voiRange: this.range }, true));
    this.view.addEventListener(CAMERA_MODIFIED, () => this.isShown && !this.isSetting && on.changed(this, "view"));
    this.view.addEventListener(STACK_NEW_IMAGE, () => this.isShown && this.plane && on.changed(this, "slice"));
    this.view.addEventListener(IMAGE_RENDERED, () => this.describe());
  }

  /** Take part in the page; the element has its place by now. */
  start() {
    this.engine.enableElement({ viewportId: this.id, type: Enums.ViewportType.STACK, element: this.view });
    this.watched.observe(this.element);
  }

  destroy() {
    this.asked = null;
    this.watched.disconnect();
    this.engine.disableElement(this.id);
    this.element.remove();
  }

  get viewport() {
    return this.engine.getViewport(this.id);
  }

  get isShown() {
    return this.shown !== undefined && this.shown === this.subject;
  }

  /** Show a subject, in a plane where it is a scan; false where another one was asked for meanwhile. */
  async show(subject, plane = null, { slab = 0, preset = subject.presets?.[0] ?? null } = {}) {
    const asked = (this.asked = {});
    const isSame = this.subject === subject && this.plane === plane;
    [this.subject, this.plane, this.slab, this.preset] = [subject, plane, slab, preset];
    this.element.dataset.image = subject.name;
    this.element.classList.toggle("rv-prior", subject.isPrior);
    if (subject.problem) return this.say(`${subject.file} cannot be shown: ${subject.problem}`);
    if (!isSame) {
      this.seen = null;
      this.say(`${subject.file}: loading`);
    }
    try {
      await subject.load();
      if (asked !== this.asked) return false;
      const ids = subject.ids(plane, { slab, preset });
      const index = plane === null ? 0 : isSame ? this.index : Math.floor(ids.length / 2);
      await this.viewport.setStack(ids, index);
      this.hungAt = index;
    } catch (problem) {
      return asked === this.asked && problem.name !== "AbortError" ? this.say(`${subject.file} cannot be shown: ${problem.message ?? problem}`) : false;
    }
    if (asked !== this.asked) return false;
    this.shown = subject;
    this.setting = preset;
    this.viewport.setProperties({ voiRange: this.rangeOf(preset), invert: subject.isTurned !== this.invert });
    this.setting = null;
    this.fitScale = this.viewport.getZoom();
    this.say("");
    this.viewport.render();
    return true;
  }

  say(words) {
    this.note.textContent = words;
    return false;
  }

  rangeOf(preset) {
    return preset.function === "TABLE" || preset.function === "SIGMOID" ? { lower: 0, upper: 65_535 } : rangeOf(preset);
  }

  /** The window: of a preset, or one's own. */
  get window() {
    return windowOf(this.range, this.preset?.function ?? "LINEAR_EXACT");
  }

  async setPreset(preset) {
    if (!this.isShown) return;
    const [before] = this.subject.ids(this.plane, { slab: this.slab, preset: this.preset });
    const [after] = this.subject.ids(this.plane, { slab: this.slab, preset });
    this.preset = preset;
    if (before !== after) {
      const view = this.getView();
      await this.viewport.setStack([after], 0);
      this.setView(view);
      this.viewport.setProperties({ invert: this.subject.isTurned !== this.invert });
    }
    this.setting = preset;
    this.viewport.setProperties({ voiRange: this.rangeOf(preset) });
    this.setting = null;
    this.viewport.render();
    this.on.changed(this, "window");
  }

  setWindow({ center, width }) {
    const kind = this.preset?.function === "LINEAR" ? "LINEAR" : "LINEAR_EXACT";
    if (!this.isShown || !Number.isFinite(center) || !(width > 0)) return;
    this.viewport.setProperties({ voiRange: rangeOf({ function: kind, center, width }) });
    this.viewport.render();
  }

  windowed(range) {
    this.range = range;
    if (!this.isShown || this.setting) return;
    this.preset = { name: null, function: this.preset?.function === "LINEAR" ? "LINEAR" : "LINEAR_EXACT" };
    this.on.changed(this, "window");
  }

  setInvert(on) {
    this.invert = on;
    if (!this.isShown) return;
    this.viewport.setProperties({ invert: this.subject.isTurned !== on });
    this.viewport.render();
  }

  /** Zoom (1: the whole image), the middle in shares of the image, quarter turns, flips: what two images can have in common. */
  getView() {
    const { width, height } = this.size;
    const { canvas } = this.viewport;
    const [x, y] = this.toImage([canvas.width / 2, canvas.height / 2]);
    return { zoom: this.viewport.getZoom() / this.fitScale, middle: [x / width, y / height], rotation: this.viewport.getRotation(), flips: [this.viewport.flipHorizontal, this.viewport.flipVertical] };
  }

  /** Take a view over; nobody is told. */
  setView({ zoom, middle: [x, y], rotation, flips: [flipHorizontal, flipVertical] }) {
    const { viewport } = this;
    const { width, height } = this.size;
    this.isSetting = true;
    viewport.setRotation(rotation);
    viewport.setCamera({ flipHorizontal: Boolean(flipHorizontal), flipVertical: Boolean(flipVertical) });
    viewport.setCamera({ scale: zoom * this.fitScale });
    viewport.setCamera({ focalPoint: this.worldOf([x * width, y * height]) });
    this.isSetting = false;
    viewport.render();
  }

  /** Turn, flip, zoom or move the image. */
  change(action) {
    if (!this.isShown) return;
    this.setView(action(this.getView()));
    this.on.changed(this, "view");
  }

  reset() {
    if (!this.isShown) return;
    this.invert = false;
    this.viewport.setRotation(0);
    this.viewport.setCamera({ flipHorizontal: false, flipVertical: false });
    this.viewport.resetCamera();
    this.viewport.setProperties({ invert: this.subject.isTurned });
    this.setPreset(this.subject.presets[0]);
  }

  /** Bring a point in mm into the middle where it is not seen. */
  reveal(point) {
    const place = this.viewport.worldToCanvas(point);
    const { clientWidth, clientHeight } = this.view;
    if (place.every((at, axis) => at >= 0 && at <= [clientWidth, clientHeight][axis])) return;
    const [x, y] = this.toImage(place);
    this.change((view) => ({ ...view, middle: [x / this.size.width, y / this.size.height] }));
  }

  zoomBy(factor) {
    this.change(({ zoom, ...view }) => ({ ...view, zoom: Math.min(Math.max(zoom * factor, 0.1), 60) }));
  }

  /** One pixel of the image on one of the screen. */
  actualSize() {
    if (!this.isShown) return;
    this.zoomBy(1 / this.facts.scale);
    // On whole dots of the canvas, so that none is a mixture of two pixels.
    const [x, y] = this.toCanvas([0, 0]).map((at) => at - Math.round(at));
    const middle = [this.view.clientWidth / 2 + x, this.view.clientHeight / 2 + y];
    this.viewport.setCamera({ focalPoint: this.viewport.canvasToWorld(middle) });
    this.viewport.render();
  }

  /** To the slice `by` further on, to the head, the back or the left. */
  scroll(by) {
    if (this.plane && this.isShown) this.goTo(this.index + by);
  }

  goTo(index) {
    const last = this.viewport.getImageIds().length - 1;
    const next = Math.min(Math.max(index, 0), last);
    if (next !== this.index) this.viewport.setImageIdIndex(next).then(() => this.viewport.render());
  }

  get index() {
    return this.viewport.getTargetImageIdIndex?.() ?? this.viewport.getCurrentImageIdIndex();
  }

  get size() {
    const [width, height] = this.viewport.getImageData().dimensions;
    return { width, height };
  }

  /** A place of the image (columns, rows; from its upper left corner) in mm, and on the element. */
  worldOf([x, y]) {
    const { origin, spacing, direction } = this.viewport.getImageData();
    return [0, 1, 2].map((axis) => origin[axis] + direction[axis] * x * spacing[0] + direction[3 + axis] * y * spacing[1]);
  }

  toCanvas(place) {
    return this.viewport.worldToCanvas(this.worldOf(place));
  }

  /** A place of the element in pixels of the image. */
  toImage(place) {
    const { origin, spacing, direction } = this.viewport.getImageData();
    const world = this.viewport.canvasToWorld(place);
    return [0, 1].map((axis) => [0, 1, 2].reduce((sum, one) => sum + (world[one] - origin[one]) * direction[3 * axis + one], 0) / spacing[axis]);
  }

  fit() {
    if (!this.isShown || !this.view.clientWidth) return;
    // What was seen before the element changed its size; by now the two do not fit together.
    const view = this.seen ?? { zoom: 1, middle: [0.5, 0.5], rotation: 0, flips: [false, false] };
    this.isSetting = true;
    this.engine.resize(true, false);
    this.viewport.resetCamera();
    this.fitScale = this.viewport.getZoom();
    this.setView(view);
  }

  /** What stands over the image, and what the element says of itself. */
  describe() {
    if (!this.isShown) return;
    const [zero, right, down] = [[0, 0], [1, 0], [0, 1]].map((place) => this.toCanvas(place));
    const [dx, dy] = [right, down].map((one) => [one[0] - zero[0], one[1] - zero[1]]);
    const { center, width } = this.window;
    const scale = Math.hypot(...dx);
    this.facts = { scale, center, width };
    Object.assign(this.element.dataset, {
      image: this.subject.name, center: round(center), width: round(width), function: this.preset?.function ?? "LINEAR_EXACT", inverted: this.invert,
      scale: round(scale), left: round(zero[0]), top: round(zero[1]), map: this.layer.isShown, rotation: this.viewport.getRotation(),
    });
    const { canvas } = this.viewport;
    if (canvas.width === canvas.clientWidth && canvas.height === canvas.clientHeight) this.seen = this.getView();
    this.mark(dx, dy);
    this.measure(scale);
    const { corners: { nw, ne, sw } } = this;
    nw.textContent = [this.subject.isPrior && "BEFORE", ...patientLines(this.subject.about.headers), this.subject.file].filter(Boolean).join("\n");
    ne.textContent = this.plane ? `${this.plane}${this.slab ? ` MIP ${this.slab} mm` : ""}\n${this.index + 1} of ${this.viewport.getImageIds().length}` : [this.subject.view, this.subject.about.laterality].filter((one) => one && one !== "UNKNOWN").join(" ");
    sw.textContent = `L ${round(center)} W ${round(width)}${this.invert ? " inverted" : ""}\n${Math.round(100 * scale)} %`;
    if (this.plane) Object.assign(this.element.dataset, { plane: this.plane, slice: this.index + 1, slices: this.viewport.getImageIds().length, slab: this.slab });
    const words = [this.subject.isPrior ? "Image before" : "Image", this.subject.file, this.plane && `${this.plane} ${this.index + 1}`, `level ${round(center)}`, `width ${round(width)}`];
    this.element.setAttribute("aria-label", words.filter(Boolean).join(", "));
    this.layer.draw(this);
    this.boxes.draw(this);
    this.on.drawn?.(this);
  }

  /** Letters of the patient's sides at the edges. */
  mark(dx, dy) {
    const letters = this.plane ? this.subject.directionsOf(this.plane) : this.subject.directions;
    const [across, downwards] = [letters?.[0]?.[0], letters?.[1]?.[0]];
    const towards = ([x, y]) => {
      const [a, b] = [x * dx[0] + y * dx[1], x * dy[0] + y * dy[1]];
      const [letter, sign] = Math.abs(a) >= Math.abs(b) ? [across, a] : [downwards, b];
      return letter ? (sign >= 0 ? letter : OPPOSITE[letter] ?? "") : "";
    };
    for (const [side, way] of Object.entries({ left: [-1, 0], right: [1, 0], top: [0, -1], bottom: [0, 1] })) this.sides[side].textContent = towards(way);
  }

  /** A bar of a round length. */
  measure(scale) {
    const { hasPixelSpacing, spacing } = this.viewport.getImageData();
    const dots = scale / spacing[0];
    const length = LENGTHS.find((one) => one * dots <= this.view.clientWidth / 4);
    this.scale.hidden = !hasPixelSpacing || !length;
    if (this.scale.hidden) return;
    this.scale.style.width = `${length * dots}px`;
    this.scale.textContent = length >= 10 ? `${length / 10} cm` : `${length} mm`;
  }

  /** The value under the pointer, and the box. */
  probe({ clientX, clientY }) {
    if (!this.isShown) return;
    const box = this.view.getBoundingClientRect();
    const place = [clientX - box.left, clientY - box.top];
    this.on.pointed(this.boxes.at(place));
    const [x, y] = this.toImage(place).map(Math.floor);
    const value = this.valueAt(x, y);
    this.corners.se.textContent = value === null ? "" : `${x}, ${y}: ${round(value)} ${this.subject.unit}`;
  }

  /** The value of a pixel (column, row) of the shown image; null outside. */
  valueAt(x, y) {
    const { width, height } = this.size;
    if (x < 0 || y < 0 || x >= width || y >= height) return null;
    return this.subject.valueOf(this.viewport.getImageData().scalarData[y * width + x], this.viewport.getCurrentImageId());
  }

  /** All values of the shown image, row by row. */
  values() {
    const id = this.viewport.getCurrentImageId();
    return Float64Array.from(this.viewport.getImageData().scalarData, (number) => this.subject.valueOf(number, id));
  }

  /** Lines where two other planes go through, at a point in mm; none for null. */
  cross(point) {
    const { across, down } = this.lines;
    across.hidden = down.hidden = !point || !this.plane || !this.isShown;
    if (across.hidden) return;
    const [x, y] = this.viewport.worldToCanvas(point);
    down.style.left = `${x}px`;
    across.style.top = `${y}px`;
  }
}
