// The viewer of radiographs: one or two of them beside each other, and what is done to both.

import { choice, fill, keysTable, made, push, toggle } from "./elements.js";
import { gestures } from "./gestures.js";
import { MapTools } from "./maptools.js";
import { Pane, nameOf, round } from "./pane.js";
import { narrowest } from "./window.js";

const KEYS = [
  [["←", "→", "↑", "↓"], "move the image"],
  [["+", "-"], "zoom in and out"],
  [["1"], "one pixel of the image on one of the screen"],
  [["Shift ↑", "Shift ↓"], "level: lower, higher"],
  [["Shift ←", "Shift →"], "width: more, less contrast"],
  [["n"], "next window preset"],
  [["i"], "invert"],
  [["r"], "as at first"],
  [["x"], "next image"],
  [["b"], "two images beside each other"],
  [["p"], "the image before this one, beside it"],
  [["l"], "both move together, or each alone"],
  [["m"], "hide the map, or show it again"],
  [["o", "O"], "map: less, more opaque"],
];
const STEP = 0.1;
const FASTER = 1.25;

export class Radiographs {
  constructor(element, source, list) {
    this.source = source;
    this.list = list;
    this.images = [...list.images, ...list.prior];
    this.panes = [];
    this.active = 0;
    this.linked = true;
    this.moving = false;
    this.finding = null;
    this.opacity = 0.6;
    this.maps = new MapTools(list.maps, this.opacity, {
      show: (name) => this.showFinding(name), hide: () => this.hideMaps(), faded: (opacity) => this.setOpacity(opacity),
    });
    this.stages = made("div", { class: "rv-stages" });
    this.status = made("p", { class: "rv-status", role: "status" });
    this.keys = keysTable(KEYS);
    this.keys.id = "rv-keys";
    this.root = made("div", { class: "rv", "data-own-keys": "", onkeydown: (event) => this.onKey(event) }, this.tools(), this.stages, this.maps.element, this.status, this.keys);
    element.replaceChildren(this.root);
    this.add(0);
    if (list.left_out) this.say(`${list.left_out} more images of this study are not shown.`);
  }

  destroy() {
    for (const pane of this.panes) pane.destroy();
    this.root.remove();
  }

  focus() {
    this.pane.stage.focus();
  }

  get pane() {
    return this.panes[this.active];
  }

  say(words) {
    this.status.textContent = words;
  }

  tools() {
    this.presets = choice("Window", [], (index) => this.each((pane) => pane.setPreset(Number(index))), { class: "rv-presets" });
    const number = (label, set) => made("input", { type: "number", step: "any", "aria-label": label, class: "rv-number", onchange: (event) => this.typed(event.target, set) });
    this.level = number("Level", (preset, center) => ({ ...preset, center }));
    this.width = number("Width", (preset, width) => ({ ...preset, width: Math.max(width, narrowest(preset.function)) }));
    this.inverting = toggle("Invert", () => this.invert());
    this.beside = toggle("Side by side", () => this.setBeside(this.panes.length < 2), { hidden: this.images.length < 2 });
    this.before = toggle("Prior", () => this.showPrior(), { hidden: !this.list.prior.length });
    this.linking = toggle("Linked", () => this.setLinked(!this.linked), { "aria-pressed": "true", hidden: true });
    this.mover = toggle("Drag moves", (on) => this.setMoving(on), { title: "Else dragging changes the window: up and down the level, across the width" });
    return made("div", { class: "rv-tools", role: "toolbar", "aria-label": "Images" },
      this.presets, made("label", {}, "Level ", this.level), made("label", {}, "Width ", this.width), this.inverting,
      push("−", () => this.zoomBy(1 / FASTER), { "aria-label": "Zoom out" }), push("+", () => this.zoomBy(FASTER), { "aria-label": "Zoom in" }),
      push("1:1", () => this.actualSize(), { "aria-label": "1:1, actual pixels" }), push("Reset", () => this.reset()), this.mover, this.beside, this.before, this.linking);
  }

  /** One more pane with an image. */
  add(index) {
    const place = this.panes.length;
    const pane = new Pane(`Radiograph ${place + 1}`, this.images, {
      chosen: (name) => this.load(place, name),
      active: () => this.activate(place),
      drawn: () => this.panes[this.active] === pane && this.refresh(),
    });
    gestures(pane.stage, {
      begins: () => this.begins(place), drags: (across, down, isMove) => this.drags(across, down, isMove),
      pinches: (factor, x, y) => this.zoomAt(place, factor, x, y),
    });
    pane.stage.addEventListener("wheel", (event) => this.onWheel(place, event), { passive: false });
    this.panes.push(pane);
    this.stages.append(pane.element);
    return this.load(place, this.images[index].name);
  }

  async load(place, name) {
    const pane = this.panes[place];
    const image = this.images.find((one) => one.name === name);
    if (image.problem) return pane.waiting(image, `${nameOf(image)} cannot be shown: ${image.problem}`);
    pane.waiting(image, `${nameOf(image)}: loading`);
    try {
      const tabled = image.presets.some((preset) => preset.function === "TABLE");
      const [words, table] = await Promise.all([this.source.words(name), tabled ? this.source.table(name) : null]);
      if (pane.image !== image) return undefined; // another one was chosen in the meantime
      pane.show(image, words, table);
      const other = this.panes.find((one) => one !== pane && one.words);
      if (this.linked && other) pane.place(other.zoom, other.middle);
      await this.overlay();
    } catch (problem) {
      if (problem.name !== "AbortError" && pane.image === image) pane.waiting(image, `${nameOf(image)} cannot be shown: ${problem.message}`);
    }
    return undefined;
  }

  /** Read the values and the map anew, where the source has others by now. */
  async again() {
    for (const pane of this.panes) if (pane.words) pane.exchange(await this.source.words(pane.image.name));
    await this.overlay();
  }

  activate(place) {
    this.active = place;
    for (const [number, pane] of this.panes.entries()) pane.element.classList.toggle("rv-active", number === place && this.panes.length > 1);
    this.refresh();
  }

  /** The tools show what the active image has. */
  refresh() {
    const { image, preset, inverted } = this.pane;
    if (!this.pane.words) return;
    const index = image.presets.indexOf(preset);
    const options = image.presets.map((one, place) => [String(place), one.name]);
    if (index < 0) options.push(["own", "own window"]);
    const shown = JSON.stringify(options);
    if (this.presets.dataset.shown !== shown) fill(this.presets, options);
    this.presets.dataset.shown = shown;
    this.presets.value = index < 0 ? "own" : String(index);
    for (const [field, value] of [[this.level, preset.center], [this.width, preset.width]]) {
      if (document.activeElement !== field) field.value = value === undefined ? "" : round(value);
    }
    press(this.inverting, inverted);
  }

  /** Do something to the active image, and to the other one where they are linked. */
  each(action) {
    const chosen = this.linked ? this.panes : [this.pane];
    for (const pane of chosen) if (pane.words) action(pane);
  }

  typed(field, set) {
    const value = Number(field.value);
    const { pane } = this;
    if (!pane.words || field.value === "" || !Number.isFinite(value)) return;
    const whole = pane.image.presets.at(-1);
    const from = pane.preset.function === "TABLE" ? whole : pane.preset;
    pane.setWindow({ ...set(from, value), name: null });
  }

  invert() {
    const on = !this.pane.inverted;
    this.each((pane) => pane.invert(on));
  }

  nextPreset() {
    const { image, preset } = this.pane;
    const next = (image.presets.indexOf(preset) + 1) % image.presets.length;
    this.each((pane) => pane.setPreset(next));
  }

  reset() {
    this.each((pane) => pane.reset());
  }

  zoomBy(factor) {
    this.put(this.pane.zoom * factor, this.pane.middle);
  }

  actualSize() {
    if (this.pane.words) this.put(this.pane.actual, this.pane.middle);
  }

  moveBy(across, down) {
    const [width, height] = this.pane.size().map((length) => length * this.pane.zoom);
    this.put(this.pane.zoom, [this.pane.middle[0] - across / width, this.pane.middle[1] - down / height]);
  }

  put(zoom, middle) {
    this.each((pane) => pane.place(zoom, middle));
  }

  setMoving(on) {
    this.moving = on;
    press(this.mover, on);
  }

  setLinked(on) {
    this.linked = on;
    press(this.linking, on);
    if (on && this.pane.words) this.put(this.pane.zoom, this.pane.middle);
  }

  setBeside(on, index = null) {
    if (on && this.panes.length < 2) {
      const shown = this.images.indexOf(this.pane.image);
      this.add(index ?? (shown + 1) % this.images.length);
    } else if (on && index !== null) {
      this.load(1, this.images[index].name);
    } else if (!on && this.panes.length > 1) {
      this.panes.pop().destroy();
      this.activate(0);
    }
    press(this.beside, this.panes.length > 1);
    press(this.before, this.panes[1]?.image?.name.startsWith("prior-") ?? false);
    this.linking.hidden = this.panes.length < 2;
    this.stages.classList.toggle("rv-two", this.panes.length > 1);
  }

  nextImage() {
    const next = (this.images.indexOf(this.pane.image) + 1) % this.images.length;
    this.load(this.active, this.images[next].name);
  }

  /** The image before the active one, of the same view where there is one; a second call takes it away. */
  showPrior() {
    const { prior } = this.list;
    if (!prior.length) return this.say("No earlier study of this patient is known here.");
    if (this.panes[1]?.image?.name.startsWith("prior-")) return this.setBeside(false);
    const kind = this.panes[0].image.view === "LATERAL";
    const alike = prior.find((image) => (image.view === "LATERAL") === kind && !image.problem) ?? prior[0];
    return this.setBeside(true, this.images.indexOf(alike));
  }

  async showFinding(name) {
    this.finding = name;
    this.maps.show(name);
    await this.overlay();
  }

  hideMaps() {
    this.finding = null;
    this.maps.show(null);
    this.overlay();
  }

  /** Lay the map of the finding over the images that it is about. */
  async overlay() {
    const { finding } = this;
    let map = null;
    try {
      map = finding && await this.source.map(finding);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      this.hideMaps();
      this.say(`Map of ${finding}: ${problem.message}`);
      return;
    }
    if (finding !== this.finding) return;
    for (const pane of this.panes) {
      pane.setMap(map?.grids.find((grid) => String(grid.image) === pane.image?.name && grid.shape.length === 2) ?? null, this.opacity);
    }
    if (map) this.kept = finding;
    this.say(map ? `Map of ${map.name} by ${map.method}: ${map.note}. The line is at half of its peak.` : "");
  }

  setOpacity(opacity) {
    this.opacity = Math.min(Math.max(opacity, 0), 1);
    this.maps.opacity = this.opacity;
    for (const pane of this.panes) {
      pane.opacity = this.opacity;
      pane.redraw();
    }
  }

  /** What a pointer on an image begins; false where there is no image. */
  begins(place) {
    if (!this.panes[place].words) return false;
    this.activate(place);
    return true;
  }

  drags(across, down, isMove) {
    if (isMove || this.moving) this.moveBy(across, down);
    else this.each((one) => one.drag(across / 300, down / 300));
  }

  zoomAt(place, factor, x, y) {
    const pane = this.panes[place];
    pane.zoomAt(factor, x, y);
    this.put(pane.zoom, pane.middle);
  }

  /** The wheel zooms where the image has the focus; else it scrolls the page, as everywhere. */
  onWheel(place, event) {
    const pane = this.panes[place];
    if (!pane.words || document.activeElement !== pane.stage) return;
    event.preventDefault();
    const box = pane.stage.getBoundingClientRect();
    this.zoomAt(place, Math.exp(-event.deltaY / 500), event.clientX - box.left, event.clientY - box.top);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const action = this.actionOf(event.key, event.shiftKey, event.target.closest(".rv-stage") !== null);
    if (!action) return;
    event.preventDefault();
    action();
  }

  actionOf(key, shift, inStage) {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (key in arrows && inStage) {
      const [across, down] = arrows[key];
      return shift ? () => this.each((pane) => pane.drag(across * STEP, down * STEP)) : () => this.pane.words && this.moveBy(-40 * across, -40 * down);
    }
    return {
      "+": () => this.zoomBy(FASTER), "=": () => this.zoomBy(FASTER), "-": () => this.zoomBy(1 / FASTER),
      1: () => this.actualSize(), n: () => this.nextPreset(), i: () => this.invert(), r: () => this.reset(), x: () => this.nextImage(),
      b: () => this.images.length > 1 && this.setBeside(this.panes.length < 2), p: () => this.showPrior(),
      l: () => this.panes.length > 1 && this.setLinked(!this.linked),
      m: () => (this.finding ? this.hideMaps() : this.kept && this.showFinding(this.kept)),
      o: () => this.setOpacity(this.opacity - 0.1), O: () => this.setOpacity(this.opacity + 0.1),
    }[key];
  }
}

const press = (button, on) => button.setAttribute("aria-pressed", String(Boolean(on)));
