// The viewer: films in a layout, one of them active, and what is done to it, or to all that are linked.

import { RenderingEngine } from "../vendor/cornerstone/cornerstone.js";
import { choice, fill, made, push, toggle } from "./elements.js";
import { Film } from "./film.js";
import { commandOf, define, keyFor, keyOf, onChange, spelled } from "./keymap.js";
import { firstLayout, hung, isFrontal, keepLayout, layoutsFor, mainOf } from "./layouts.js";
import { peakOf } from "./maplayer.js";
import { Lens } from "./lens.js";
import { MapTools } from "./maptools.js";
import { CROSSHAIRS, Hand, MAGNIFIER, toolsFor } from "./measuring.js";
import { Radiograph, Scan, begin } from "./subjects.js";

// Keys by default are those of OHIF where it has one for the purpose; `HAND` are those that take a tool.
const HAND = {
  w: ["WindowLevel", "window by the left button"], z: ["Zoom", "zoom by it"], q: ["Pan", "move by it"], d: ["Length", "length"], a: ["Angle", "angle"],
  t: ["CardiothoracicRatio", "cardiothoracic ratio"], e: ["EllipticalROI", "ellipse"], u: ["RectangleROI", "rectangle"], y: ["Probe", "probe"], g: [MAGNIFIER, "magnifier"], c: [CROSSHAIRS, "crosshairs"],
};
const PART = "films";
const COMMANDS = [
  ["ArrowUp", "slice before"], ["ArrowDown", "next slice"], ["Home", "first slice"], ["End", "last slice"], ["ArrowLeft", "film before"], ["ArrowRight", "next film"], ["PageUp", "image before"], ["PageDown", "next image"],
  ...[1, 2, 3, 4, 5].map((place) => [String(place), `window preset ${place}`]), ["n", "next window preset"],
  ["Shift ArrowUp", "level lower"], ["Shift ArrowDown", "level higher"], ["Shift ArrowLeft", "width: more contrast"], ["Shift ArrowRight", "width: less contrast"], ["i", "invert"],
  ...Object.entries(HAND).map(([key, [, words]]) => [key, words]), ["Backspace", "remove a measurement"], ["Delete", "remove a measurement"],
  ["+", "zoom in"], ["-", "zoom out"], ["=", "whole image"], ["0", "one pixel of the image on one of the screen"], ["r", "turn right"], ["l", "turn left"], ["h", "flip across"], ["v", "flip down"], [" ", "as at first"],
  [".", "next layout"], [",", "layout before"], ["p", "beside the prior"], ["k", "films move together, or each alone"], ["x", "highest values of a slab (MIP)"], ["f", "full screen"],
  ["b", "next sentence with a box"], ["B", "sentence with a box before"], ["s", "hide the boxes, or show them again"],
  ["m", "hide the map, or show it again"], ["o", "map: less opaque"], ["O", "map: more opaque"],
];
for (const [key, words] of COMMANDS) define(PART, "Films", key, words);
const STEP = 0.1;
const FASTER = 1.25;
const SLAB_MM = 20;
let engines = 0;

/** Films on the page, for who looks from outside. */
export const shown = new Set();

export class Films {
  /** `on` are listeners: pointed(keys) of the sentences whose box the pointer is on, stepped(by) to another one. */
  constructor(element, source, list, on) {
    begin();
    [this.on, this.marks] = [on, { boxes: [], marked: new Set(), isHidden: false }];
    this.modality = list.images[0].kind === "volume" ? "CT" : "DX";
    const subjectFor = (headers) => (image) => new (this.modality === "CT" ? Scan : Radiograph)({ ...image, headers }, source);
    [this.source, this.list, this.own, this.prior] = [source, list, list.images.map(subjectFor(list.headers)), list.prior.map(subjectFor(list.prior_headers))];
    this.engine = new RenderingEngine(`radweave-${(engines += 1)}`);
    this.hand = new Hand(this.modality, () => this.listMeasured());
    [this.films, this.film, this.main, this.isLinked, this.isFollowing, this.finding, this.slab, this.point] = [[], null, mainOf(this.own), true, false, null, 0, null];
    this.maps = new MapTools(list.maps, 0.6, { show: (name) => this.showFinding(name), hide: () => this.hideMaps(), faded: (opacity) => this.setOpacity(opacity) });
    this.grid = made("div", { class: "rv-grid", onpointerdown: (event) => this.pointAt(event), onpointermove: (event) => this.pointAt(event), onpointerup: () => this.lens.hide(), onpointerleave: () => this.lens.hide(), ondblclick: (event) => this.enlarge(event) });
    this.lens = new Lens();
    this.thumbs = made("div", { class: "rv-thumbs", role: "group", "aria-label": "Images of the study" });
    this.status = made("p", { class: "rv-status", role: "status" });
    this.measures = made("ul", { class: "rv-measures", "aria-label": "Measurements" });
    this.keys = made("dl", { id: "rv-keys" });
    this.forgetKeys = onChange(() => this.listKeys());
    this.listKeys();
    this.root = made("div", { class: "rv", "data-own-keys": "", onkeydown: (event) => this.onKey(event) }, this.tools(), made("div", { class: "rv-middle" }, this.thumbs, this.grid),
      made("div", { class: "rv-foot" }, this.maps.element, this.status, this.measures, made("details", { class: "rv-help" }, made("summary", {}, "Keys"), this.keys)));
    element.replaceChildren(this.root);
    if (list.left_out) this.say(`${list.left_out} more images of this study are not shown.`);
  }

  async start() {
    this.drawThumbs();
    await this.setLayout(firstLayout(this.modality, this.own, this.prior));
  }

  destroy() {
    this.forgetKeys();
    for (const film of this.films) this.drop(film);
    this.films = [];
    this.hand.destroy();
    this.engine.destroy();
    for (const subject of [...this.own, ...this.prior]) subject.forget();
    this.root.remove();
  }

  focus() {
    this.film?.element.focus();
  }

  say(words) {
    this.status.textContent = words;
  }

  tools() {
    this.taking = new Map(toolsFor(this.modality).map(([name, words, title]) => [name, toggle(words, () => this.take(name), { title })]));
    this.press(this.taking.get(this.hand.held), true);
    this.presets = choice("Window", [], (place) => this.each((film) => film.setPreset(film.subject.presets[Number(place)])), { class: "rv-presets" });
    const number = (label, change) => made("input", { type: "number", step: "any", "aria-label": label, class: "rv-number", onchange: ({ target }) => target.value !== "" && change(Number(target.value)) });
    this.level = number("Level", (center) => this.film.setWindow({ ...this.film.window, center }));
    this.width = number("Width", (width) => this.film.setWindow({ ...this.film.window, width }));
    this.inverting = toggle("Invert", () => this.invert());
    this.boxing = toggle("Boxes", () => this.hideBoxes(), { "aria-pressed": "true", hidden: true, title: "Boxes that mark findings of the sentences" });
    this.slabs = toggle("MIP", () => this.setSlab(this.slab ? 0 : SLAB_MM), { hidden: this.modality !== "CT", title: `The highest values of ${SLAB_MM} mm around each slice` });
    this.layouts = choice("Layout", layoutsFor(this.modality, this.own, this.prior), (name) => this.setLayout(name, { isChosen: true }));
    this.before = toggle("Prior", () => this.showPrior(), { hidden: !this.prior.length, title: "The study before this one, beside it" });
    this.linking = toggle("Linked", () => this.setLinked(!this.isLinked), { "aria-pressed": "true", hidden: true, title: "Films move together; what lay between them when this was switched on stays" });
    const icon = (sign, words, action) => push(sign, action, { "aria-label": words, title: words });
    const group = (label, ...children) => made("div", { class: "rv-tools", role: "group", "aria-label": label }, children);
    return made("div", { class: "rv-bar", role: "toolbar", "aria-label": "Images" }, group("Tools", ...this.taking.values()),
      group("Grey", this.presets, made("label", {}, "L ", this.level), made("label", {}, "W ", this.width), this.inverting),
      group("View", icon("−", "Zoom out", () => this.zoomBy(1 / FASTER)), icon("+", "Zoom in", () => this.zoomBy(FASTER)), icon("1:1", "1:1, actual pixels", () => this.each((film) => film.actualSize())),
        icon("↻", "Turn right", () => this.turn(90)), icon("↔", "Flip across", () => this.flip(0)), icon("↕", "Flip down", () => this.flip(1)), push("Reset", () => this.reset()), this.slabs, this.boxing),
      group("Layout", this.layouts, this.before, this.linking, push("Full", () => this.fullScreen(), { "aria-label": "Full screen", title: "Full screen" })));
  }

  press(button, on) {
    button?.setAttribute("aria-pressed", String(Boolean(on)));
  }

  take(name) {
    if (!this.taking.has(name)) return;
    this.hand.take(name);
    for (const [one, button] of this.taking) this.press(button, one === name);
    if (name === CROSSHAIRS && this.layout !== "planes") this.setLayout("planes");
  }

  /** Hang the images of a layout. */
  async setLayout(name, { isChosen = false } = {}) {
    this.layout = name;
    if (isChosen) keepLayout(this.modality, name);
    const hanging = hung(name, this.main, this.own, this.prior);
    while (this.films.length > hanging.length) this.drop(this.films.pop());
    while (this.films.length < hanging.length) this.add();
    this.grid.dataset.layout = name;
    this.layouts.value = name;
    this.press(this.before, name === "prior");
    this.linking.hidden = this.films.length < 2;
    this.activate(this.films[0]);
    const early = (this.early = new Map());
    await this.settled(() => Promise.all(this.films.map((film, place) => film.show(...hanging[place], { slab: this.slab }))));
    for (const film of this.films) film.fit();
    this.measureApart((film) => film.hungAt);
    if (this.early === early) this.early = null;
    await this.settled(() => early.forEach((film, what) => this.lead(film, what)));
    this.locate(this.film);
    await this.overlay();
    this.drawThumbs();
  }

  add() {
    const film = new Film(`${this.engine.id}-${(this.made = (this.made ?? 0) + 1)}`, this.engine, {
      active: (one) => this.activate(one), changed: (one, what) => this.follow(one, what), drawn: (one) => this.drawn(one), pointed: (keys) => this.on.pointed(keys),
    }, this.marks);
    this.films.push(film);
    shown.add(film);
    this.grid.append(film.element);
    film.start();
    this.hand.hold(film);
    return film;
  }

  drop(film) {
    shown.delete(film);
    film.destroy();
    if (this.film === film) this.film = null;
  }

  activate(film) {
    this.film = film;
    for (const one of this.films) one.element.classList.toggle("rv-active", one === film && this.films.length > 1);
    this.refresh();
  }

  drawn(film) {
    if (film === this.film) this.refresh();
    if (this.layout === "planes") film.cross(this.point);
  }

  /** The tools show what the active film has. */
  refresh() {
    const { film } = this;
    if (!film?.isShown) return;
    const index = film.subject.presets.findIndex((one) => one.name === film.preset?.name);
    const options = film.subject.presets.map((one, place) => [String(place), one.name]);
    if (index < 0) options.push(["own", "own window"]);
    const words = JSON.stringify(options);
    if (this.presets.dataset.shown !== words) fill(this.presets, options);
    this.presets.dataset.shown = words;
    this.presets.value = index < 0 ? "own" : String(index);
    const { center, width } = film.window;
    for (const [field, value] of [[this.level, center], [this.width, width]]) if (document.activeElement !== field) field.value = Number(value.toPrecision(5));
    this.press(this.inverting, film.invert);
  }

  /** Do something while no film follows another. */
  async settled(action) {
    this.isFollowing = true;
    try {
      return await action();
    } finally {
      this.isFollowing = false;
    }
  }

  /** Do something to the active film, and to the others where they are linked. */
  each(action) {
    const chosen = this.isLinked ? this.films : [this.film];
    this.settled(() => Promise.all(chosen.filter((film) => film?.isShown).map(action)));
  }

  /** What was done to one film is done to those that are linked with it: the window to all, zoom and place to those of the same plane. */
  follow(film, what) {
    if (this.isLinked && film === this.film) this.early?.set(what, film); // films that are still loading follow when they hang
    if (this.isFollowing || !film.isShown) return;
    if (what === "slice") this.locate(film);
    if (what === "slice" && film.isLed) {
      film.isLed = false;
      return;
    }
    if (what === "window") this.refresh();
    if (this.isLinked) this.settled(() => this.lead(film, what));
  }

  lead(film, what) {
    for (const other of this.films.filter((one) => one !== film && one.isShown)) {
      if (what === "window") other.setWindow(film.window);
      if (what === "view" && other.plane === film.plane && isFrontal(other.subject) === isFrontal(film.subject)) other.setView(film.getView());
      if (what === "slice" && other.plane === film.plane && other.subject !== film.subject) this.scrollAlong(film, other);
    }
  }

  /** Scroll a film as far as another one is, by mm; what lay between them when they were linked stays. */
  scrollAlong(film, other) {
    const depth = (one) => one.subject.depth(one.plane, one.index);
    if (!this.apart?.has(film)) return;
    const wanted = depth(film) + this.apart.get(film);
    const next = other.subject.at(other.plane, [wanted, wanted, wanted]);
    if (next === other.index) return;
    other.isLed = true; // its own news leads nobody back
    other.goTo(next);
  }

  /** Take note of what lies between two scans, at the slices that `at` gives of films. */
  measureApart(at = (film) => film.index) {
    const [one, other] = this.films;
    this.apart = null;
    if (this.layout !== "prior" || this.modality !== "CT" || !one?.isShown || !other?.isShown) return;
    const apart = other.subject.depth(other.plane, at(other)) - one.subject.depth(one.plane, at(one));
    this.apart = new Map([[one, apart], [other, -apart]]);
  }

  setLinked(on) {
    this.isLinked = on;
    this.press(this.linking, on);
    if (on) this.measureApart();
    if (on && this.film?.isShown) {
      this.follow(this.film, "view");
      this.follow(this.film, "window");
    }
  }

  async setSlab(mm) {
    this.slab = mm;
    this.press(this.slabs, mm > 0);
    if (this.modality !== "CT") return;
    const kept = this.films.map((film) => [film, film.getView(), film.window, film.preset]);
    await this.settled(() => Promise.all(kept.map(async ([film, view, window, preset]) => {
      await film.show(film.subject, film.plane, { slab: mm, preset: film.subject.presets[0] });
      film.setView(view);
      film.setWindow(window);
      film.preset = preset;
    })));
    this.refresh();
  }

  /** The point that the planes go through follows a slice that was scrolled to. */
  locate(film) {
    if (this.layout !== "planes" || !film?.isShown) return;
    const { subject } = film;
    this.point ??= subject.point([0.5, 0.5, 0.5]);
    const through = { axial: 2, coronal: 1, sagittal: 0 }[film.plane];
    this.point[through] = subject.depth(film.plane, film.index);
    for (const one of this.films) one.cross(this.point);
  }

  /** Go to a point of a scan (x, y, z in mm) in all films of it; those that are linked with them follow. */
  goTo(point, subject) {
    this.point = [...point];
    for (const film of this.films) if (film.isShown && film.plane && film.subject === subject) film.goTo(subject.at(film.plane, point));
    for (const film of this.films) film.cross(this.layout === "planes" ? this.point : null);
  }

  /** The crosshairs and the magnifier follow the left button. */
  pointAt(event) {
    const film = this.films.find((one) => one.element.contains(event.target));
    const isHeld = Boolean(event.buttons & 1) && film?.isShown;
    if (!isHeld || this.hand.held !== MAGNIFIER) this.lens.hide();
    if (!isHeld) return;
    const box = film.view.getBoundingClientRect();
    const place = [event.clientX - box.left, event.clientY - box.top];
    if (this.hand.held === MAGNIFIER) this.lens.show(film, place);
    if (this.hand.held === CROSSHAIRS && film.plane) this.goTo(film.viewport.canvasToWorld(place), film.subject);
  }

  /** A double click makes a film the only one, or brings the others back. */
  enlarge(event) {
    const film = this.films.find((one) => one.element.contains(event.target));
    if (!film) return;
    const isAlone = this.grid.classList.toggle("rv-alone");
    for (const one of this.films) one.element.classList.toggle("rv-hidden", isAlone && one !== film);
  }

  invert() {
    const on = !this.film?.invert;
    for (const film of this.isLinked ? this.films : [this.film]) film?.setInvert(on);
  }

  nextPreset(by = 1) {
    const { subject, preset } = this.film;
    const count = subject.presets.length;
    this.setPreset((subject.presets.findIndex((one) => one.name === preset?.name) + by + count) % count);
  }

  setPreset(place) {
    this.each((film) => film.subject.presets[place] && film.setPreset(film.subject.presets[place]));
  }

  shiftWindow(level, width) {
    const { film } = this;
    if (!film?.isShown) return;
    const now = film.window;
    film.setWindow({ center: now.center + level * STEP * now.width, width: now.width * (1 + width * STEP) });
  }

  zoomBy(factor) {
    this.film?.zoomBy(factor);
  }

  turn(by) {
    this.change((view) => ({ ...view, rotation: (view.rotation + by + 360) % 360 }));
  }

  flip(axis) {
    this.change((view) => ({ ...view, flips: view.flips.map((on, one) => (one === axis ? !on : on)) }));
  }

  change(action) {
    this.film?.change(action);
  }

  reset() {
    this.each((film) => film.reset());
  }

  step(by) {
    const place = this.films.indexOf(this.film);
    this.films[(place + by + this.films.length) % this.films.length]?.element.focus();
  }

  /** Another image of the study in the active film. */
  nextImage(by) {
    const all = [...this.own, ...this.prior];
    this.hang(all[(all.indexOf(this.film.subject) + by + all.length) % all.length]);
  }

  async hang(subject) {
    if (!subject.isPrior) this.main = subject;
    if (this.modality === "CT" && this.layout === "planes") await this.settled(() => Promise.all(this.films.map((film) => film.show(subject, film.plane, { slab: this.slab }))));
    else await this.settled(() => this.film.show(subject, this.film.plane ?? subject.planes[0], { slab: this.slab }));
    await this.overlay();
    this.drawThumbs();
  }

  nextLayout(by) {
    const names = layoutsFor(this.modality, this.own, this.prior).map(([name]) => name);
    this.setLayout(names[(names.indexOf(this.layout) + by + names.length) % names.length], { isChosen: true });
  }

  /** The study before this one beside it; a second call takes it away. */
  async showPrior() {
    if (!this.prior.length) return this.say("No earlier study of this patient is known here.");
    await this.setLayout(this.layout === "prior" ? (this.modality === "CT" ? "planes" : "one") : "prior");
  }

  fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.root.requestFullscreen?.().catch(() => this.say("This browser gives no full screen here."));
  }

  /** Small pictures of the study's images: which are there, and which are shown. */
  drawThumbs() {
    const all = [...this.own, ...this.prior];
    const current = new Set(this.films.map((film) => film.subject));
    this.thumbs.hidden = all.length < 2;
    this.thumbs.replaceChildren(...all.map((subject) => {
      const words = [subject.isPrior && "before", subject.view && subject.view !== "UNKNOWN" && subject.view.toLowerCase(), subject.file].filter(Boolean).join(" ");
      const picture = made("canvas", { class: "rv-thumb", "aria-hidden": "true" });
      subject.thumbnail(picture);
      return push([picture, made("span", {}, words)], () => this.hang(subject), { class: "rv-pick", "aria-pressed": String(current.has(subject)), title: words });
    }));
  }

  listMeasured() {
    const all = this.hand.measured();
    this.measures.replaceChildren(...all.map(({ uid, words, lines }) => made("li", {}, `${words}: ${lines.join(", ")} `,
      push("×", () => this.removeMeasured(uid), { "aria-label": `Remove ${words} ${lines[0]}` }))));
  }

  removeMeasured(uid) {
    if (uid) this.hand.remove(uid);
    else this.hand.removeOne();
    this.listMeasured();
    for (const film of this.films) if (film.isShown) film.viewport.render();
  }

  /** Mark sentences' boxes as [{ key, finding, image, box }], box in shares of the image. */
  setBoxes(boxes) {
    this.marks.boxes = boxes;
    this.boxing.hidden = !boxes.length;
    this.drawBoxes();
  }

  markBoxes(keys) {
    this.marks.marked = new Set(keys);
    this.drawBoxes();
  }

  hideBoxes() {
    this.marks.isHidden = !this.marks.isHidden;
    this.press(this.boxing, !this.marks.isHidden);
    this.drawBoxes();
  }

  drawBoxes() {
    for (const film of this.films) if (film.isShown) film.boxes.draw(film);
  }

  /** Go to a sentence's first box: to its image, and its middle, in a slice through it. */
  async showBox(key) {
    const found = this.marks.boxes.find((one) => one.key === key);
    const subject = this.own.find(({ name }) => name === found?.image);
    if (!subject) return;
    if (this.marks.isHidden) this.hideBoxes();
    if (!this.films.some((film) => film.subject === subject)) await this.hang(subject);
    const half = found.box.length / 2;
    const middle = found.box.slice(0, half).map((low, axis) => (low + found.box[half + axis]) / 2);
    if (half === 3 && subject.size) this.goTo(subject.point(middle), subject);
    for (const film of this.films) if (film.subject === subject && film.isShown) film.reveal(half === 3 ? subject.point(middle) : film.worldOf([middle[0] * film.size.width, middle[1] * film.size.height]));
  }

  async showFinding(name) {
    this.finding = name;
    this.maps.show(name);
    const map = await this.overlay();
    const grid = map?.grids.find((one) => one.shape.length === 3 && String(one.image) === this.main.name);
    if (grid && this.main.size) this.goTo(this.main.point(peakOf(grid)), this.main);
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
      if (problem.name === "AbortError") return null;
      this.hideMaps();
      this.say(`Map of ${finding}: ${problem.message}`);
      return null;
    }
    if (finding !== this.finding) return null;
    for (const film of this.films) {
      film.layer.grid = map?.grids.find((grid) => String(grid.image) === film.subject?.name && grid.shape.length === (film.plane ? 3 : 2)) ?? null;
      film.describe();
    }
    if (map) this.kept = finding;
    this.say(map ? `Map of ${map.name} by ${map.method}: ${map.note}. The line is at half of its peak.` : "");
    return map;
  }

  setOpacity(opacity) {
    const next = Math.min(Math.max(opacity, 0), 1);
    this.maps.opacity = next;
    for (const film of this.films) {
      film.layer.opacity = next;
      film.describe();
    }
  }

  listKeys() {
    const all = [...COMMANDS.map(([command, words]) => [keyFor(PART, command), words]), ["Escape", "back to the page's keys"]];
    this.keys.replaceChildren(...all.flatMap(([key, words]) => [made("dt", {}, made("kbd", {}, spelled(key))), made("dd", {}, words)]));
  }

  onKey(event) {
    const key = keyOf(event);
    if (key === null || event.target.closest("input, select, textarea")) return;
    const inFilm = event.target.closest(".rv-film") !== null;
    if (!inFilm && [" ", "Enter"].includes(key)) return;
    const action = this.actionOf(key === "Escape" ? key : commandOf(PART, key));
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  actionOf(command) {
    const { film } = this;
    if (command === "Escape") return document.fullscreenElement ? null : () => document.activeElement.blur();
    if (!film?.isShown) return null;
    if (command in HAND) return () => this.take(HAND[command][0]);
    if (/^[1-5]$/.test(command)) return () => this.setPreset(Number(command) - 1);
    return {
      ArrowUp: () => film.scroll(-1), ArrowDown: () => film.scroll(1), Home: () => film.plane && film.goTo(0), End: () => film.plane && film.goTo(Infinity),
      ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1), PageUp: () => this.nextImage(-1), PageDown: () => this.nextImage(1),
      n: () => this.nextPreset(), "+": () => this.zoomBy(FASTER), "-": () => this.zoomBy(1 / FASTER), "=": () => this.change((view) => ({ ...view, zoom: 1, middle: [0.5, 0.5] })),
      0: () => film.actualSize(), r: () => this.turn(90), l: () => this.turn(-90), h: () => this.flip(0), v: () => this.flip(1), i: () => this.invert(), " ": () => this.reset(),
      Backspace: () => this.removeMeasured(), Delete: () => this.removeMeasured(), ".": () => this.nextLayout(1), ",": () => this.nextLayout(-1), p: () => this.showPrior(),
      k: () => this.setLinked(!this.isLinked), x: () => this.setSlab(this.slab ? 0 : SLAB_MM), f: () => this.fullScreen(),
      "Shift ArrowUp": () => this.shiftWindow(-1, 0), "Shift ArrowDown": () => this.shiftWindow(1, 0), "Shift ArrowLeft": () => this.shiftWindow(0, -1), "Shift ArrowRight": () => this.shiftWindow(0, 1),
      b: () => this.on.stepped(1), B: () => this.on.stepped(-1), s: () => this.hideBoxes(),
      m: () => (this.finding ? this.hideMaps() : this.kept && this.showFinding(this.kept)),
      o: () => this.setOpacity(film.layer.opacity - 0.1), O: () => this.setOpacity(film.layer.opacity + 0.1),
    }[command];
  }
}
