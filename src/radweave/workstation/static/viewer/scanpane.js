// One CT scan on a canvas of its own, drawn by niivue (vendored): planes, window, place, a map over it.

import { COLOUR_MAP } from "./colours.js";
import { made } from "./elements.js";
import "../vendor/niivue/niivue.umd.js";

const { Niivue, SLICE_TYPE, SHOW_RENDER, DRAG_MODE } = globalThis.niivue;
const FONT = new URL("../vendor/niivue/roboto.png", import.meta.url).href;
const RAMP = "radweave";
const TRANSLUCENT_BELOW_MIN = 1; // niivue exports no name for it; its volumes take 1 for what its meshes call 2
export const PLANES = [["three", "three planes", SLICE_TYPE.MULTIPLANAR], ["axial", "axial", SLICE_TYPE.AXIAL], ["coronal", "coronal", SLICE_TYPE.CORONAL], ["sagittal", "sagittal", SLICE_TYPE.SAGITTAL]];

const between = (value, low, high) => Math.min(Math.max(value, low), high);

export class ScanPane {
  /** `on` are listeners: located(pane), windowed(pane), active(pane). */
  constructor(label, on) {
    [this.label, this.on, this.image, this.asked] = [label, on, null, 0];
    this.canvas = made("canvas", { tabindex: "0", role: "application", "aria-roledescription": "CT scan", "aria-label": label, "aria-describedby": "rv-keys", onfocus: () => on.active(this), onpointerdown: () => on.active(this) });
    this.name = made("p", { class: "rv-name" });
    this.element = made("section", { class: "rv-pane", "aria-label": label }, this.name, made("div", { class: "rv-scan" }, this.canvas));
  }

  /** Attach niivue; false where this browser cannot draw it. */
  async start() {
    if (!document.createElement("canvas").getContext("webgl2")) return false;
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
    this.nv.onIntensityChange = () => this.on.windowed(this);
    await this.nv.attachToCanvas(this.canvas, false);
    this.nv.addColormap(RAMP, COLOUR_MAP);
    return true;
  }

  destroy() {
    this.asked += 1;
    this.nv?.cleanup?.();
    this.nv?.gl?.getExtension("WEBGL_lose_context")?.loseContext();
    this.element.remove();
  }

  /** Show another image; whether it is this one that is shown in the end. */
  async load(image, read) {
    const asked = (this.asked += 1);
    this.image = image;
    const buffer = await read(image.name);
    if (asked !== this.asked) return false;
    for (const volume of [...this.nv.volumes].reverse()) this.nv.removeVolume(volume);
    await this.nv.loadFromArrayBuffer(buffer, "scan.nii.gz");
    this.name.textContent = `${image.name.startsWith("prior-") ? "before: " : ""}${image.file}`;
    return true;
  }

  get scan() {
    return this.nv?.volumes[0];
  }

  get window() {
    const { cal_min: low, cal_max: high } = this.scan;
    return { center: (low + high) / 2, width: high - low };
  }

  setWindow({ center, width }) {
    if (!this.scan) return;
    this.scan.cal_min = center - width / 2;
    this.scan.cal_max = center + width / 2;
    this.nv.updateGLVolume();
    Object.assign(this.canvas.dataset, { center: Math.round(center), width: Math.round(width) });
  }

  get inverted() {
    return Boolean(this.scan?.colormapInvert);
  }

  invert(on) {
    if (!this.scan) return;
    this.scan.colormapInvert = on;
    this.nv.updateGLVolume();
  }

  setPlanes(value) {
    this.nv.setSliceType(PLANES.find(([name]) => name === value)[2]);
    this.canvas.dataset.planes = value;
  }

  get view() {
    return [...this.nv.scene.pan2Dxyzmm];
  }

  setView(view) {
    this.nv.setPan2Dxyzmm(view);
  }

  zoomBy(factor) {
    const [x, y, z, zoom] = this.view;
    this.setView([x, y, z, between(zoom * factor, 0.5, 20)]);
  }

  /** The place that the planes go through, in shares of the scan. */
  get place() {
    return [...this.nv.scene.crosshairPos];
  }

  setPlace(shares) {
    this.nv.scene.crosshairPos = shares.map((share) => between(share, 0, 1));
    this.nv.drawScene();
    this.describe();
  }

  /** Move the place, in voxels to the right, front and head. */
  step(x, y, z) {
    if (!this.scan) return;
    this.nv.moveCrosshairInVox(x, y, z);
    this.located();
  }

  located() {
    if (!this.scan) return;
    this.describe();
    this.on.located(this);
  }

  describe() {
    const [, x, y, z] = this.scan.dimsRAS;
    const at = this.nv.frac2vox(this.nv.scene.crosshairPos).map((value) => Math.round(value) + 1);
    const value = this.scan.getValue(...at.map((one) => one - 1));
    this.words = `sagittal ${at[0]} of ${x}, coronal ${at[1]} of ${y}, axial ${at[2]} of ${z}, ${Math.round(value)} HU`;
    this.canvas.setAttribute("aria-label", `${this.label}: ${this.words}`);
    Object.assign(this.canvas.dataset, { image: this.image.name, sagittal: at[0], coronal: at[1], axial: at[2], map: this.nv.volumes.length > 1 });
  }

  /** Lay a map over the scan, and go to its peak. */
  async setMap(grid, buffer, opacity) {
    await this.nv.loadFromArrayBuffer(buffer, "map.nii.gz");
    const laid = this.nv.volumes[1];
    this.nv.setColormap(laid.id, RAMP); // which sets the range by what it finds: ours comes after it
    // From 0 to the peak, ever clearer below it; else low values would have edges.
    Object.assign(laid, { cal_min: 255, cal_max: 255, colormapType: TRANSLUCENT_BELOW_MIN });
    this.setOpacity(opacity);
    this.jump(grid);
  }

  clear() {
    for (const volume of this.nv?.volumes.slice(1) ?? []) this.nv.removeVolume(volume);
    if (this.scan) this.describe();
  }

  setOpacity(opacity) {
    if (this.nv.volumes.length > 1) this.nv.setOpacity(1, opacity);
  }

  /** To the peak of a map (z, y, x). */
  jump({ shape, covers, values }) {
    const peak = values.indexOf(Math.max(...values));
    const at = [Math.floor(peak / (shape[1] * shape[2])), Math.floor(peak / shape[2]) % shape[1], peak % shape[2]];
    const { affine, dims } = this.scan.hdr;
    const voxel = [2, 1, 0].map((axis, place) => (covers[axis][0] + ((at[axis] + 0.5) / shape[axis]) * covers[axis][1]) * dims[place + 1] - 0.5);
    const mm = affine.slice(0, 3).map((row) => row[0] * voxel[0] + row[1] * voxel[1] + row[2] * voxel[2] + row[3]);
    this.setPlace([...this.nv.mm2frac(mm)]);
    this.located();
  }
}
