// The row of tools for maps, the same for radiographs and scans.

import { RAMP } from "./colours.js";
import { choice, fill, made } from "./elements.js";

/** Whose map is shown, how opaque, and what its colours mean. `on` are listeners: show(finding), hide(), faded(opacity). */
export class MapTools {
  constructor(names, opacity, on) {
    [this.names, this.on] = [names, on];
    this.findings = choice("Map of a finding", [], (name) => (name ? on.show(name) : on.hide()));
    this.slider = made("input", { type: "range", min: "0", max: "1", step: "0.05", value: opacity, "aria-label": "Opacity of the map", oninput: (event) => on.faded(Number(event.target.value)) });
    const bar = Object.assign(made("canvas", { class: "rv-legend", "aria-hidden": "true" }), { width: 256, height: 1 });
    const row = new ImageData(256, 1);
    RAMP.forEach((colour, step) => row.data.set([...colour.slice(0, 3), 255], 4 * step));
    bar.getContext("2d").putImageData(row, 0, 0);
    this.legend = made("span", { class: "rv-ramp", hidden: true }, "none ", bar, " peak");
    this.element = made("div", { class: "rv-tools" }, made("label", {}, "Map ", this.findings), made("label", {}, "Opacity ", this.slider), this.legend);
    this.show(null);
  }

  /** Say which finding's map is shown, or none. One that came with a later draft is taken into the list. */
  show(finding) {
    if (finding && !this.names.includes(finding)) this.names.push(finding);
    fill(this.findings, [["", "no map"], ...this.names.map((name) => [name, name])]);
    this.findings.value = finding ?? "";
    this.legend.hidden = !finding;
    this.element.hidden = !this.names.length;
  }

  set opacity(value) {
    this.slider.value = value;
  }
}
