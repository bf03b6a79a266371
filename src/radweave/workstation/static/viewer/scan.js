// The viewer of CT scans: one or two of them beside each other, windows for lung, mediastinum and bone, maps over them.

import { choice, fill, keysTable, made, push, toggle } from "./elements.js";
import { MapTools } from "./maptools.js";
import { PLANES, ScanPane } from "./scanpane.js";

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
  [["p"], "the scan before this one, beside it"],
  [["l"], "both move together, or each alone"],
  [["m"], "hide the map, or show it again"],
  [["o", "O"], "map: less, more opaque"],
];
const STEP = 0.1;
const FASTER = 1.25;

export class Scan {
  constructor(element, source, list) {
    [this.source, this.list, this.images] = [source, list, [...list.images, ...list.prior]];
    [this.finding, this.kept, this.opacity, this.linked, this.apart] = [null, null, 0.75, true, [0, 0, 0]];
    this.maps = new MapTools(list.maps, this.opacity, {
      show: (name) => this.showFinding(name), hide: () => this.hideMaps(), faded: (opacity) => this.setOpacity(opacity),
    });
    this.stages = made("div", { class: "rv-stages" });
    this.place = made("p", { class: "rv-status", "aria-hidden": "true" });
    this.status = made("p", { class: "rv-status", role: "status" }, "The scan is loading.");
    this.keys = keysTable(KEYS);
    this.keys.id = "rv-keys";
    this.panes = [];
    this.root = made("div", { class: "rv", "data-own-keys": "", onkeydown: (event) => this.onKey(event) }, this.tools(), this.stages, this.place, this.maps.element, this.status, this.keys);
    element.replaceChildren(this.root);
  }

  async start() {
    if (await this.add("CT scan")) await this.load(this.list.images[0].name);
  }

  destroy() {
    for (const pane of this.panes) pane.destroy();
    this.root.remove();
  }

  focus() {
    this.pane?.canvas.focus();
  }

  say(words) {
    this.status.textContent = words;
  }

  tools() {
    const { presets } = this.list.images[0];
    this.pick = choice("Scan", this.images.map((image) => [image.name, `${image.name.startsWith("prior-") ? "before: " : ""}${image.file}`]), (name) => this.load(name), { hidden: this.images.length < 2 });
    this.presets = choice("Window", presets.map((preset) => [preset.name, preset.name]), (name) => this.setPreset(name));
    const number = (label, change) => made("input", { type: "number", step: "10", "aria-label": `${label} in Hounsfield units`, class: "rv-number", onchange: (event) => this.pane?.scan && change(Number(event.target.value)) });
    this.level = number("Level", (center) => Number.isFinite(center) && this.setWindow(center, this.pane.window.width));
    this.width = number("Width", (width) => width > 0 && this.setWindow(this.pane.window.center, width));
    this.planes = choice("Planes", PLANES.map(([value, words]) => [value, words]), (value) => this.setPlanes(value));
    this.inverting = toggle("Invert", (on) => this.invert(on));
    this.before = toggle("Prior", () => this.showPrior(), { hidden: !this.list.prior.length });
    this.linking = toggle("Linked", () => this.setLinked(!this.linked), { "aria-pressed": "true", hidden: true, title: "Both go together; what lay between them when this was switched on stays" });
    const step = (label, words, ...by) => push(label, () => this.pane?.step(...by), { "aria-label": words });
    return made("div", { class: "rv-tools", role: "toolbar", "aria-label": "Scan" }, this.pick, this.presets,
      made("label", {}, "Level ", this.level), made("label", {}, "Width ", this.width), this.planes, this.inverting,
      step("▲", "One slice to the head", 0, 0, 1), step("▼", "One slice to the feet", 0, 0, -1),
      push("−", () => this.zoomBy(1 / FASTER), { "aria-label": "Zoom out" }), push("+", () => this.zoomBy(FASTER), { "aria-label": "Zoom in" }),
      push("Reset", () => this.reset()), this.before, this.linking);
  }

  /** One more pane; false where this browser cannot draw it. */
  async add(label) {
    const pane = new ScanPane(label, {
      located: (one) => this.located(one), windowed: (one) => this.windowed(one), active: (one) => this.activate(one),
    });
    this.stages.append(pane.element);
    if (!await pane.start()) {
      pane.destroy();
      this.say("This browser shows no scan: it has no WebGL 2.");
      return false;
    }
    this.panes.push(pane);
    if (this.panes.length === 1) this.activate(pane);
    return true;
  }

  /** The tools show what the active pane has. */
  activate(pane) {
    if (this.pane === pane) return;
    this.pane = pane;
    this.mark();
    if (!pane.scan) return;
    this.windowed(pane);
    this.inverting.setAttribute("aria-pressed", String(pane.inverted));
    this.planes.value = pane.canvas.dataset.planes ?? "three";
    this.pick.value = pane.image.name;
    this.place.textContent = pane.words;
  }

  mark() {
    for (const pane of this.panes) pane.element.classList.toggle("rv-active", pane === this.pane && this.panes.length > 1);
    this.stages.classList.toggle("rv-two", this.panes.length > 1);
    this.before.setAttribute("aria-pressed", String(this.panes.some((pane) => pane.image?.name.startsWith("prior-"))));
    this.linking.hidden = this.panes.length < 2;
  }

  async load(name, pane = this.pane) {
    this.say("The scan is loading.");
    try {
      if (!await pane.load(this.images.find((image) => image.name === name), (one) => this.source.volume(one))) return;
      if (pane === this.pane) this.pick.value = name;
      const other = this.panes.find((one) => one !== pane && one.scan);
      if (other && this.linked) this.follow(other, pane);
      else this.reset(pane);
      this.mark();
      this.say("");
      if (this.finding) await this.showFinding(this.finding);
    } catch (problem) {
      if (problem.name !== "AbortError") this.say(`The scan cannot be shown: ${problem.message}`);
    }
  }

  /** What a pane shows as the other one does. */
  follow(from, to) {
    to.invert(from.inverted);
    to.setPlanes(from.canvas.dataset.planes);
    to.setWindow(from.window);
    to.setView(from.view);
    to.setPlace(from.place);
    this.apart = [0, 0, 0];
  }

  /** The panes that something is done to. */
  get all() {
    return (this.linked ? this.panes : [this.pane]).filter((pane) => pane?.scan);
  }

  setPreset(name) {
    const preset = this.list.images[0].presets.find((one) => one.name === name);
    if (preset) this.setWindow(preset.center, preset.width);
  }

  setWindow(center, width) {
    for (const pane of this.all) pane.setWindow({ center, width });
    if (this.pane?.scan) this.showWindow(this.pane.window);
  }

  /** The window of a pane was changed with the mouse. */
  windowed(pane) {
    if (!pane.scan) return;
    const { center, width } = pane.window;
    for (const one of this.linked ? this.panes : [pane]) one.setWindow({ center, width });
    if (pane === this.pane) this.showWindow({ center, width });
  }

  showWindow({ center, width }) {
    const { presets } = this.list.images[0];
    const preset = presets.find((one) => Math.abs(one.center - center) < 0.5 && Math.abs(one.width - width) < 1);
    const options = presets.map((one) => [one.name, one.name]);
    fill(this.presets, preset ? options : [...options, ["own", "own window"]]);
    this.presets.value = preset?.name ?? "own";
    this.level.value = Math.round(center);
    this.width.value = Math.round(width);
  }

  nextPreset() {
    const { presets } = this.list.images[0];
    const now = presets.findIndex((one) => one.name === this.presets.value);
    this.setPreset(presets[(now + 1) % presets.length].name);
  }

  invert(on) {
    for (const pane of this.all) pane.invert(on);
    this.inverting.setAttribute("aria-pressed", String(on));
  }

  setPlanes(value) {
    for (const pane of this.all) pane.setPlanes(value);
    this.planes.value = value;
  }

  zoomBy(factor) {
    for (const pane of this.all) pane.zoomBy(factor);
  }

  reset(only = null) {
    const { presets } = this.list.images[0];
    this.apart = [0, 0, 0];
    for (const pane of only ? [only] : this.all) {
      pane.setView([0, 0, 0, 1]);
      pane.invert(false);
      pane.setPlanes("three");
      pane.setWindow(presets[0]);
      pane.setPlace([0.5, 0.5, 0.5]);
    }
    this.inverting.setAttribute("aria-pressed", "false");
    this.planes.value = "three";
    this.showWindow(presets[0]);
    this.place.textContent = this.pane.words ?? "";
  }

  /** A pane went to another place: the other one goes with it, as far from it as it was. */
  located(pane) {
    if (pane === this.pane) this.place.textContent = pane.words;
    const other = this.panes.find((one) => one !== pane && one.scan);
    if (!this.linked || !other) return;
    const sign = pane === this.panes[0] ? 1 : -1;
    other.setPlace(pane.place.map((share, axis) => share + sign * this.apart[axis]));
  }

  setLinked(on) {
    this.linked = on;
    this.linking.setAttribute("aria-pressed", String(on));
    const [one, other] = this.panes;
    if (!on || !other?.scan || !this.pane.scan) return;
    this.apart = other.place.map((share, axis) => share - one.place[axis]);
    const last = this.pane === one ? other : one;
    last.setWindow(this.pane.window);
    last.setView(this.pane.view);
  }

  /** The scan before this one beside it; a second call takes it away. */
  async showPrior() {
    const { prior } = this.list;
    if (!prior.length) return this.say("No earlier study of this patient is known here.");
    if (this.panes.length > 1) {
      const [first, second] = this.panes;
      second.destroy();
      this.panes.pop();
      this.pane = null;
      this.activate(first);
      return this.mark();
    }
    if (await this.add("Scan before")) await this.load(prior[0].name, this.panes[1]);
    return this.mark();
  }

  async showFinding(name) {
    this.finding = name;
    this.maps.show(name);
    try {
      const [map, buffer] = await Promise.all([this.source.map(name), this.source.mapVolume(name)]);
      if (this.finding !== name) return;
      for (const pane of this.panes) pane.clear();
      const [grid] = map.grids;
      const pane = this.panes.find((one) => one.scan && one.image.name === String(grid.image));
      if (!pane) return this.say("The map is of the other scan.");
      await pane.setMap(grid, buffer, this.opacity);
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
    for (const pane of this.panes) pane.clear();
    this.say("");
  }

  setOpacity(opacity) {
    this.opacity = Math.min(Math.max(opacity, 0), 1);
    this.maps.opacity = this.opacity;
    for (const pane of this.panes) pane.setOpacity(this.opacity);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const action = this.pane?.scan && this.actionOf(event.key, event.shiftKey, event.target === this.pane.canvas);
    if (!action) return;
    event.preventDefault();
    action();
  }

  actionOf(key, shift, inStage) {
    const { center, width } = this.pane.window;
    const windows = { ArrowUp: [center - STEP * width, width], ArrowDown: [center + STEP * width, width], ArrowLeft: [center, width * (1 - STEP)], ArrowRight: [center, width * (1 + STEP)] };
    const steps = { ArrowUp: [0, 0, 1], ArrowDown: [0, 0, -1], ArrowLeft: [1, 0, 0], ArrowRight: [-1, 0, 0], PageUp: [0, 1, 0], PageDown: [0, -1, 0] };
    if (shift && inStage && windows[key]) return () => this.setWindow(...windows[key]);
    if (inStage && steps[key]) return () => this.pane.step(...steps[key]);
    return {
      1: () => this.setPlanes("three"), 2: () => this.setPlanes("axial"), 3: () => this.setPlanes("coronal"), 4: () => this.setPlanes("sagittal"),
      n: () => this.nextPreset(), i: () => this.invert(!this.pane.inverted), r: () => this.reset(),
      "+": () => this.zoomBy(FASTER), "=": () => this.zoomBy(FASTER), "-": () => this.zoomBy(1 / FASTER), p: () => this.showPrior(),
      l: () => this.panes.length > 1 && this.setLinked(!this.linked),
      m: () => (this.finding ? this.hideMaps() : this.kept && this.showFinding(this.kept)),
      o: () => this.setOpacity(this.opacity - 0.1), O: () => this.setOpacity(this.opacity + 0.1),
    }[key];
  }
}
