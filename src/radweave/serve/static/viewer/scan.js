// The viewer of CT scans: three planes by niivue (vendored), windows for lung, mediastinum and bone, maps over them.

import { COLOUR_MAP } from "./colours.js";
import { choice, fill, keysTable, made, push, toggle } from "./elements.js";
import { MapTools } from "./maptools.js";
import "../vendor/niivue/niivue.umd.js";

const { Niivue, SLICE_TYPE, SHOW_RENDER, DRAG_MODE } = globalThis.niivue;
const FONT = new URL("../vendor/niivue/roboto.png", import.meta.url).href;
const RAMP = "radweave";
const TRANSLUCENT_BELOW_MIN = 1; // niivue exports no name for it; its volumes take 1 for what its meshes call 2
const PLANES = [["three", "three planes", SLICE_TYPE.MULTIPLANAR], ["axial", "axial", SLICE_TYPE.AXIAL], ["coronal", "coronal", SLICE_TYPE.CORONAL], ["sagittal", "sagittal", SLICE_TYPE.SAGITTAL]];
const KEYS = [
  [["↑", "↓"], "to the head, to the feet"],
  [["←", "→"], "to the patient's right, to the left"],
  [["Page ↑", "Page ↓"], "to the front, to the back"],
  [["1", "2", "3", "4"], "three planes, axial, coronal, sagittal"],
  [["n"], "next window preset"],
  [["Shift ↑", "Shift ↓"], "level: lower, higher"],
  [["Shift ←", "Shift →"], "width: more, less contrast"],
  [["i"], "invert"],
  [["+", "-"], "zoom in and out"],
  [["r"], "as at first"],
  [["m"], "hide the map, or show it again"],
  [["o", "O"], "map: less, more opaque"],
];
const STEP = 0.1;
const FASTER = 1.25;

export class Scan {
  constructor(element, source, list) {
    [this.source, this.list, this.images] = [source, list, [...list.images, ...list.prior]];
    this.image = list.images[0];
    [this.finding, this.kept, this.opacity, this.asked] = [null, null, 0.75, 0];
    this.maps = new MapTools(list.maps, this.opacity, {
      show: (name) => this.showFinding(name), hide: () => this.hideMaps(), faded: (opacity) => this.setOpacity(opacity),
    });
    this.canvas = made("canvas", { tabindex: "0", role: "application", "aria-roledescription": "CT scan", "aria-label": "CT scan", "aria-describedby": "rv-keys" });
    this.stage = made("div", { class: "rv-scan" }, this.canvas);
    this.place = made("p", { class: "rv-status", "aria-hidden": "true" });
    this.status = made("p", { class: "rv-status", role: "status" }, "The scan is loading.");
    this.keys = keysTable(KEYS);
    this.keys.id = "rv-keys";
    this.root = made("div", { class: "rv", "data-own-keys": "", onkeydown: (event) => this.onKey(event) }, this.tools(), this.stage, this.place, this.maps.element, this.status, this.keys);
    element.replaceChildren(this.root);
  }

  async start() {
    this.nv = new Niivue({
      dragAndDropEnabled: false, isRadiologicalConvention: true, isCornerOrientationText: false, backColor: [0, 0, 0, 1],
      multiplanarShowRender: SHOW_RENDER.NEVER, sliceType: SLICE_TYPE.MULTIPLANAR, crosshairWidth: 0.3, crosshairWidthUnit: "percent", crosshairColor: [0.66, 0.8, 0.95, 0.7],
      dragMode: DRAG_MODE.contrast, loadingText: "", scrollRequiresFocus: true, showAllOrientationMarkers: true, fontColor: [1, 0.72, 0.2, 1], logLevel: "error",
    });
    // Its pictures come as data in addresses, which the content security policy forbids; the font is a file of ours.
    this.nv.DEFAULT_FONT_GLYPH_SHEET = FONT;
    this.nv.loadDefaultMatCap = async () => null;
    // Its keys are others than ours, and some of them do what a reader does not want.
    this.nv.keyDownListener = () => {};
    this.nv.keyUpListener = () => {};
    this.nv.onLocationChange = () => this.located();
    this.nv.onIntensityChange = () => this.windowed();
    if (!document.createElement("canvas").getContext("webgl2")) return this.say("This browser shows no scan: it has no WebGL 2.");
    await this.nv.attachToCanvas(this.canvas, false);
    this.nv.addColormap(RAMP, COLOUR_MAP);
    return this.load(this.image.name);
  }

  destroy() {
    this.nv?.cleanup?.();
    this.nv?.gl?.getExtension("WEBGL_lose_context")?.loseContext();
    this.root.remove();
  }

  focus() {
    this.canvas.focus();
  }

  say(words) {
    this.status.textContent = words;
  }

  tools() {
    this.pick = choice("Scan", this.images.map((image) => [image.name, `${image.name.startsWith("prior-") ? "before: " : ""}${image.file}`]), (name) => this.load(name), { hidden: this.images.length < 2 });
    this.presets = choice("Window", this.image.presets.map((preset) => [preset.name, preset.name]), (name) => this.setPreset(name));
    const number = (label, change) => made("input", { type: "number", step: "10", "aria-label": `${label} in Hounsfield units`, class: "rv-number", onchange: (event) => change(Number(event.target.value)) });
    this.level = number("Level", (center) => Number.isFinite(center) && this.setWindow(center, this.window().width));
    this.width = number("Width", (width) => width > 0 && this.setWindow(this.window().center, width));
    this.planes = choice("Planes", PLANES.map(([value, words]) => [value, words]), (value) => this.setPlanes(value));
    this.inverting = toggle("Invert", (on) => this.invert(on));
    this.before = toggle("Prior", () => this.showPrior(), { hidden: !this.list.prior.length });
    const step = (label, words, ...by) => push(label, () => this.step(...by), { "aria-label": words });
    return made("div", { class: "rv-tools", role: "toolbar", "aria-label": "Scan" }, this.pick, this.presets,
      made("label", {}, "Level ", this.level), made("label", {}, "Width ", this.width), this.planes, this.inverting,
      step("▲", "One slice to the head", 0, 0, 1), step("▼", "One slice to the feet", 0, 0, -1),
      push("−", () => this.zoomBy(1 / FASTER), { "aria-label": "Zoom out" }), push("+", () => this.zoomBy(FASTER), { "aria-label": "Zoom in" }),
      push("Reset", () => this.reset()), this.before);
  }

  async load(name) {
    const asked = (this.asked += 1);
    this.image = this.images.find((image) => image.name === name);
    this.pick.value = name;
    this.before.setAttribute("aria-pressed", String(name.startsWith("prior-")));
    this.say("The scan is loading.");
    try {
      const buffer = await this.source.volume(name);
      if (asked !== this.asked) return;
      for (const volume of [...this.nv.volumes].reverse()) this.nv.removeVolume(volume);
      await this.nv.loadFromArrayBuffer(buffer, "scan.nii.gz");
      this.reset();
      this.say("");
      if (this.finding) await this.showFinding(this.finding);
    } catch (problem) {
      if (problem.name !== "AbortError") this.say(`The scan cannot be shown: ${problem.message}`);
    }
  }

  get scan() {
    return this.nv?.volumes[0];
  }

  window() {
    const { cal_min: low, cal_max: high } = this.scan;
    return { center: (low + high) / 2, width: high - low };
  }

  setPreset(name) {
    const preset = this.image.presets.find((one) => one.name === name);
    if (preset) this.setWindow(preset.center, preset.width);
  }

  setWindow(center, width) {
    if (!this.scan) return;
    this.scan.cal_min = center - width / 2;
    this.scan.cal_max = center + width / 2;
    this.nv.updateGLVolume();
    this.windowed();
  }

  /** The tools show the window, whoever changed it. */
  windowed() {
    const { center, width } = this.window();
    const preset = this.image.presets.find((one) => Math.abs(one.center - center) < 0.5 && Math.abs(one.width - width) < 1);
    const options = this.image.presets.map((one) => [one.name, one.name]);
    fill(this.presets, preset ? options : [...options, ["own", "own window"]]);
    this.presets.value = preset?.name ?? "own";
    this.level.value = Math.round(center);
    this.width.value = Math.round(width);
    Object.assign(this.canvas.dataset, { center: Math.round(center), width: Math.round(width) });
  }

  nextPreset() {
    const { presets } = this.image;
    const now = presets.findIndex((one) => one.name === this.presets.value);
    this.setPreset(presets[(now + 1) % presets.length].name);
  }

  invert(on) {
    if (!this.scan) return;
    this.scan.colormapInvert = on;
    this.inverting.setAttribute("aria-pressed", String(on));
    this.nv.updateGLVolume();
  }

  setPlanes(value) {
    this.nv.setSliceType(PLANES.find(([name]) => name === value)[2]);
    this.planes.value = value;
    this.canvas.dataset.planes = value;
  }

  zoomBy(factor) {
    const [x, y, z, zoom] = this.nv.scene.pan2Dxyzmm;
    this.nv.setPan2Dxyzmm([x, y, z, Math.min(Math.max(zoom * factor, 0.5), 20)]);
  }

  reset() {
    this.nv.setPan2Dxyzmm([0, 0, 0, 1]);
    this.nv.scene.crosshairPos = [0.5, 0.5, 0.5];
    this.invert(false);
    this.setPlanes("three");
    this.setPreset(this.image.presets[0].name);
    this.nv.drawScene();
    this.located();
  }

  /** Move the place that the planes go through, in voxels to the right, front and head. */
  step(x, y, z) {
    if (!this.scan) return;
    this.nv.moveCrosshairInVox(x, y, z);
    this.located();
  }

  located() {
    if (!this.scan) return;
    const [, x, y, z] = this.scan.dimsRAS;
    const at = this.nv.frac2vox(this.nv.scene.crosshairPos).map((value) => Math.round(value) + 1);
    const value = this.scan.getValue(...at.map((one) => one - 1));
    const words = `sagittal ${at[0]} of ${x}, coronal ${at[1]} of ${y}, axial ${at[2]} of ${z}, ${Math.round(value)} HU`;
    this.place.textContent = words;
    this.canvas.setAttribute("aria-label", `CT scan: ${words}`);
    Object.assign(this.canvas.dataset, { image: this.image.name, sagittal: at[0], coronal: at[1], axial: at[2], map: this.nv.volumes.length > 1 });
  }

  showPrior() {
    const { prior, images } = this.list;
    if (!prior.length) return this.say("No earlier study of this patient is known here.");
    return this.load(this.image.name.startsWith("prior-") ? images[0].name : prior[0].name);
  }

  async showFinding(name) {
    this.finding = name;
    this.maps.show(name);
    try {
      const [map, buffer] = await Promise.all([this.source.map(name), this.source.mapVolume(name)]);
      if (this.finding !== name || !this.scan) return;
      this.clear();
      if (this.image.name !== String(map.grids[0].image)) return this.say("The map is of the other scan.");
      await this.nv.loadFromArrayBuffer(buffer, "map.nii.gz");
      const laid = this.nv.volumes[1];
      this.nv.setColormap(laid.id, RAMP); // which sets the range by what it finds: ours comes after it
      // From 0 to the peak, ever clearer below it; else low values would have edges.
      Object.assign(laid, { cal_min: 255, cal_max: 255, colormapType: TRANSLUCENT_BELOW_MIN });
      this.setOpacity(this.opacity);
      this.jump(map.grids[0]);
      this.kept = name;
      this.say(`Map of ${map.name} by ${map.method}: ${map.note}.`);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.hideMaps();
      this.say(`Map of ${name}: ${problem.message}`);
    }
  }

  hideMaps() {
    this.finding = null;
    this.maps.show(null);
    this.clear();
    this.say("");
    this.located();
  }

  clear() {
    for (const volume of this.nv.volumes.slice(1)) this.nv.removeVolume(volume);
  }

  /** To the peak of a map (z, y, x). */
  jump({ shape, covers, values }) {
    const peak = values.indexOf(Math.max(...values));
    const at = [Math.floor(peak / (shape[1] * shape[2])), Math.floor(peak / shape[2]) % shape[1], peak % shape[2]];
    const { affine, dims } = this.scan.hdr;
    const voxel = [2, 1, 0].map((axis, place) => (covers[axis][0] + ((at[axis] + 0.5) / shape[axis]) * covers[axis][1]) * dims[place + 1] - 0.5);
    const mm = affine.slice(0, 3).map((row) => row[0] * voxel[0] + row[1] * voxel[1] + row[2] * voxel[2] + row[3]);
    this.nv.scene.crosshairPos = this.nv.mm2frac(mm).map((share) => Math.min(Math.max(share, 0), 1));
    this.nv.drawScene();
    this.located();
  }

  setOpacity(opacity) {
    this.opacity = Math.min(Math.max(opacity, 0), 1);
    this.maps.opacity = this.opacity;
    if (this.nv.volumes.length > 1) this.nv.setOpacity(1, this.opacity);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const action = this.scan && this.actionOf(event.key, event.shiftKey, event.target === this.canvas);
    if (!action) return;
    event.preventDefault();
    action();
  }

  actionOf(key, shift, inStage) {
    const { center, width } = this.window();
    const windows = { ArrowUp: [center - STEP * width, width], ArrowDown: [center + STEP * width, width], ArrowLeft: [center, width * (1 - STEP)], ArrowRight: [center, width * (1 + STEP)] };
    const steps = { ArrowUp: [0, 0, 1], ArrowDown: [0, 0, -1], ArrowLeft: [1, 0, 0], ArrowRight: [-1, 0, 0], PageUp: [0, 1, 0], PageDown: [0, -1, 0] };
    if (shift && inStage && windows[key]) return () => this.setWindow(...windows[key]);
    if (inStage && steps[key]) return () => this.step(...steps[key]);
    return {
      1: () => this.setPlanes("three"), 2: () => this.setPlanes("axial"), 3: () => this.setPlanes("coronal"), 4: () => this.setPlanes("sagittal"),
      n: () => this.nextPreset(), i: () => this.invert(!this.scan.colormapInvert), r: () => this.reset(),
      "+": () => this.zoomBy(FASTER), "=": () => this.zoomBy(FASTER), "-": () => this.zoomBy(1 / FASTER), p: () => this.showPrior(),
      m: () => (this.finding ? this.hideMaps() : this.kept && this.showFinding(this.kept)),
      o: () => this.setOpacity(this.opacity - 0.1), O: () => this.setOpacity(this.opacity + 0.1),
    }[key];
  }
}
