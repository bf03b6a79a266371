// What the viewer shows, as images of cornerstone3D: a radiograph, and a scan in three planes and slabs.
//
// The workstation has parsed the files: values come as arrays. A pixel's number is its value after the modality step,
// except where a radiograph's slope or intercept is no whole number; then `valueOf` says what a number stands for.

import { Enums, cache, imageLoader, init, metaData, utilities } from "../vendor/cornerstone/cornerstone.js";
import { shownOf, valueOf } from "./window.js";

const SCHEME = "radweave";
const WHOLE = 65_535;
const THUMB = 96;
const subjects = new Map();
const places = new Map();
let isReady = false;

/** Register the loader and what it says of its images, once for the page. Drawing is done without WebGL. */
export function begin() {
  if (isReady) return;
  isReady = true;
  init({ rendering: { useCPURendering: true } });
  imageLoader.registerImageLoader(SCHEME, (id) => ({ promise: subjectOf(id).image(id) }));
  metaData.addProvider((kind, id) => (typeof id === "string" && id.startsWith(`${SCHEME}:`) ? places.get(id)?.[kind] : undefined), 100);
}

/** The subject that an image is of. */
export const subjectOf = (id) => [...subjects.values()].find((one) => id.startsWith(`${one.key}/`));

/** The window between two values, as the file's function has it (PS3.3 C.11.2.1.2). */
export function rangeOf({ function: kind, center, width }) {
  if (kind === "LINEAR_EXACT") return { lower: center - width / 2, upper: center + width / 2 };
  const reach = Math.max(width - 1, 1e-6) / 2;
  return { lower: center - 0.5 - reach, upper: center - 0.5 + reach };
}

/** The window that a range of values is. */
export function windowOf({ lower, upper }, kind = "LINEAR") {
  return kind === "LINEAR_EXACT" ? { center: (lower + upper) / 2, width: upper - lower } : { center: (lower + upper + 1) / 2, width: upper - lower + 1 };
}

class Subject {
  constructor(image, source) {
    [this.about, this.source, this.key] = [image, source, `${SCHEME}:${source.place}:${image.name}`];
    subjects.set(this.key, this);
  }

  get name() {
    return this.about.name;
  }

  get isPrior() {
    return this.name.startsWith("prior-");
  }

  get file() {
    return this.about.file;
  }

  /** Draw a small picture: a value for each dot, by shares of rows and columns, 0 to 1. */
  sketch(canvas, rows, columns, shownAt) {
    const [height, width] = [rows, columns].map((length) => Math.max(1, Math.round((THUMB * length) / Math.max(rows, columns))));
    Object.assign(canvas, { width, height });
    const image = new ImageData(width, height);
    for (let at = 0; at < width * height; at += 1) {
      const grey = 255 * shownAt(Math.floor(((Math.floor(at / width) + 0.5) / height) * rows), Math.floor((((at % width) + 0.5) / width) * columns));
      image.data.set([grey, grey, grey, 255], 4 * at);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  /** Give what is held back. */
  forget() {
    subjects.delete(this.key);
    for (const id of places.keys()) {
      if (!id.startsWith(`${this.key}/`)) continue;
      places.delete(id);
      if (cache.getImageLoadObject(id)) cache.removeImageLoadObject(id, { force: true });
    }
  }

  /** An image of cornerstone3D: `plane` has rows, columns, spacing [between rows, between columns] or null, and where it lies. */
  made(id, pixels, { rows, columns, spacing, ratio = 1, origin = [0, 0, 0], across = [1, 0, 0], down = [0, 1, 0] }, { min, max, range, modality, frame, slope = 1, intercept = 0 }) {
    const [between, along] = spacing ?? [null, null];
    places.set(id, {
      imagePlaneModule: {
        rows, columns, frameOfReferenceUID: frame, rowPixelSpacing: between, columnPixelSpacing: along, pixelSpacing: spacing, usingDefaultValues: !spacing,
        rowCosines: across, columnCosines: down, imageOrientationPatient: [...across, ...down], imagePositionPatient: origin,
      },
      imagePixelModule: { bitsAllocated: 16, bitsStored: 16, highBit: 15, pixelRepresentation: min < 0 ? 1 : 0, samplesPerPixel: 1, photometricInterpretation: "MONOCHROME2" },
      generalSeriesModule: { modality, seriesInstanceUID: this.key },
      voiLutModule: {},
    });
    return {
      imageId: id, rows, columns, height: rows, width: columns, color: false, rgba: false, numberOfComponents: 1, invert: false, slope, intercept,
      minPixelValue: min, maxPixelValue: max, windowCenter: (range.lower + range.upper + 1) / 2, windowWidth: range.upper - range.lower + 1,
      voiLUTFunction: Enums.VOILUTFunctionType.LINEAR, rowPixelSpacing: between ?? ratio, columnPixelSpacing: along ?? 1,
      sizeInBytes: pixels.byteLength, dataType: pixels.constructor.name, isPreScaled: slope === 1 && intercept === 0, getPixelData: () => pixels,
      preScale: { enabled: true, scaled: true, scalingParameters: { rescaleSlope: 1, rescaleIntercept: 0, modality } },
      voxelManager: utilities.VoxelManager.createImageVoxelManager({ width: columns, height: rows, scalarData: pixels, numberOfComponents: 1 }),
    };
  }
}

/** A radiograph. Its image under a window of the file's table, or under a sigmoid, is another one: what that shows, from 0 to 65,535. */
export class Radiograph extends Subject {
  modality = "DX";
  planes = [null];
  unit = "";

  get view() {
    return this.about.view;
  }

  get presets() {
    return this.about.presets;
  }

  get directions() {
    return this.about.orientation;
  }

  /** Whether low values are bright. */
  get isTurned() {
    return this.about.inverted;
  }

  get problem() {
    return this.about.problem;
  }

  ids(_plane, { preset }) {
    const kind = preset?.function;
    return [kind === "TABLE" || kind === "SIGMOID" ? `${this.key}/shown-${this.presets.indexOf(preset)}` : `${this.key}/values`];
  }

  /** The value that a number of a pixel stands for. */
  valueOf(number, id) {
    if (!id.endsWith("/values")) return number / WHOLE;
    const { first, slope, intercept } = this.about;
    return this.isWhole ? number : valueOf(number - first, { first, slope, intercept });
  }

  get isWhole() {
    const { slope, intercept } = this.about;
    return slope === 1 && Number.isInteger(intercept);
  }

  async load() {
    const tabled = this.presets.some((one) => one.function === "TABLE");
    [this.words, this.table] = await Promise.all([this.source.words(this.name), tabled ? this.source.table(this.name) : null]);
  }

  async image(id) {
    if (!this.words) await this.load();
    const { rows, columns, spacing_mm: spacing, pixel_ratio: ratio } = this.about;
    const plane = { rows, columns, spacing, ratio };
    const about = { modality: this.modality, frame: this.key };
    if (!id.endsWith("/values")) return this.made(id, this.shown(this.presets[Number(id.split("shown-")[1])]), plane, { ...about, min: 0, max: WHOLE, range: { lower: 0, upper: WHOLE } });
    const { pixels, min, max } = this.values();
    const { slope, intercept } = this.about;
    const range = rangeOf(this.presets.at(-1));
    return this.made(id, pixels, plane, { ...about, min, max, range, ...(this.isWhole ? {} : { slope, intercept }) });
  }

  async thumbnail(canvas) {
    if (this.problem) return;
    await this.load().catch(() => null);
    if (!this.words) return;
    const { rows, columns, inverted, padding } = this.about;
    const [preset] = this.presets;
    this.sketch(canvas, rows, columns, (y, x) => {
      const word = this.words[y * columns + x];
      if (word === padding) return 0;
      const share = shownOf(valueOf(word, this.about), preset, this.table);
      return inverted ? 1 - share : share;
    });
  }

  /** The numbers of the pixels. What is no image is as dark as the darkest pixel. */
  values() {
    const { first, intercept, padding, inverted } = this.about;
    const add = first + (this.isWhole ? intercept : 0);
    const { words } = this;
    let max = 0; // words go from 0 on
    for (let place = 0; place < words.length; place += 1) if (words[place] > max && words[place] !== padding) max = words[place];
    if (!add && padding === null) return { pixels: words, min: 0, max };
    const outside = (inverted ? max : 0) + add;
    const pixels = add >= 0 && max + add <= WHOLE ? new Uint16Array(words.length) : new Int32Array(words.length);
    for (let place = 0; place < pixels.length; place += 1) pixels[place] = words[place] === padding ? outside : words[place] + add;
    return { pixels, min: add, max: max + add };
  }

  shown(preset) {
    const { inverted, padding } = this.about;
    const steps = Uint16Array.from({ length: WHOLE + 1 }, (_, word) => Math.round(WHOLE * shownOf(valueOf(word, this.about), preset, this.table)));
    if (padding !== null) steps[padding] = inverted ? WHOLE : 0;
    return this.words.map((word) => steps[word]);
  }
}

const AXIAL = "axial", CORONAL = "coronal", SAGITTAL = "sagittal";
export const PLANES = [AXIAL, CORONAL, SAGITTAL];
/** Places of the axes in (x, y, z): across, down, through; and whether down goes against its axis. */
const AXES = { [AXIAL]: [0, 1, 2, false], [CORONAL]: [0, 2, 1, true], [SAGITTAL]: [1, 2, 0, true] };
const DIRECTIONS = { [AXIAL]: ["L", "P"], [CORONAL]: ["L", "F"], [SAGITTAL]: ["P", "F"] };

/** A scan in Hounsfield units. Its voxels go to the patient's left, back and head (x, y, z), as the workstation reads all scans. */
export class Scan extends Subject {
  modality = "CT";
  planes = PLANES;
  unit = "HU";
  isTurned = false;
  view = null;
  problem = null;

  get presets() {
    return this.presets_ ??= this.about.presets.map((one) => ({ function: "LINEAR_EXACT", ...one }));
  }

  directionsOf(plane) {
    return DIRECTIONS[plane];
  }

  count(plane) {
    return this.size[AXES[plane][2]];
  }

  /** All slices of a plane, each the highest values of `slab` mm around it (0: the slice alone). */
  ids(plane, { slab }) {
    return Array.from({ length: this.count(plane) }, (_, place) => `${this.key}/${plane}/${slab}/${place}`);
  }

  valueOf(number) {
    return number;
  }

  load() {
    return this.loading ??= this.read();
  }

  async read() {
    const file = await this.source.volume(this.name);
    this.source.drop(`images/${this.name}/volume`);
    const packed = new Blob([file]).stream().pipeThrough(new DecompressionStream("gzip"));
    const bytes = await new Response(packed).arrayBuffer();
    const header = new DataView(bytes, 0, 352);
    this.size = [42, 44, 46].map((at) => header.getInt16(at, true));
    this.spacing = [80, 84, 88].map((at) => header.getFloat32(at, true));
    this.voxels = new Int16Array(bytes, header.getFloat32(108, true));
    let [min, max] = [32_767, -32_768];
    for (let place = 0; place < this.voxels.length; place += 1) {
      const value = this.voxels[place];
      if (value < min) min = value;
      if (value > max) max = value;
    }
    [this.min, this.max] = [min, max];
  }

  async image(id) {
    await this.load();
    const [plane, slab, place] = id.slice(this.key.length + 1).split("/");
    const [across, down, through, isUp] = AXES[plane];
    const reach = this.reach(through, Number(slab));
    const [from, to] = [Math.max(0, Number(place) - reach), Math.min(this.size[through] - 1, Number(place) + reach)];
    const pixels = this.slice(plane, from);
    for (let other = from + 1; other <= to; other += 1) {
      const more = this.slice(plane, other);
      for (let at = 0; at < pixels.length; at += 1) if (more[at] > pixels[at]) pixels[at] = more[at];
    }
    const unit = (axis, sign = 1) => [0, 1, 2].map((one) => (one === axis ? sign : 0));
    const origin = [0, 0, 0];
    origin[through] = (Number(place) + 0.5) * this.spacing[through];
    if (isUp) origin[down] = this.size[down] * this.spacing[down];
    const range = rangeOf(this.presets[0]);
    return this.made(id, pixels, {
      rows: this.size[down], columns: this.size[across], spacing: [this.spacing[down], this.spacing[across]], origin, across: unit(across), down: unit(down, isUp ? -1 : 1),
    }, { min: this.min, max: this.max, range, modality: this.modality, frame: this.key });
  }

  /** The middle coronal slice, once the scan is read: it is too large to be read for that. */
  async thumbnail(canvas) {
    if (!this.voxels) return;
    const [columns, , rows] = this.size;
    const pixels = this.slice(CORONAL, Math.floor(this.size[1] / 2));
    const { lower, upper } = rangeOf(this.presets[0]);
    this.sketch(canvas, rows, columns, (y, x) => Math.min(Math.max((pixels[y * columns + x] - lower) / (upper - lower), 0), 1));
  }

  /** One slice, row by row from the top. */
  slice(plane, place) {
    const [nx, ny, nz] = this.size;
    const area = nx * ny;
    if (plane === AXIAL) return this.voxels.slice(place * area, (place + 1) * area);
    const columns = plane === CORONAL ? nx : ny;
    const pixels = new Int16Array(columns * nz);
    for (let z = 0; z < nz; z += 1) {
      const row = (nz - 1 - z) * columns;
      if (plane === CORONAL) pixels.set(this.voxels.subarray(z * area + place * nx, z * area + (place + 1) * nx), row);
      else for (let y = 0, at = z * area + place; y < ny; y += 1, at += nx) pixels[row + y] = this.voxels[at];
    }
    return pixels;
  }

  /** The corners (x, y, z in mm) of a box (z0, y0, x0, z1, y1, x1 in shares) on a slice, or the slab around it; null where it does not reach there. */
  outline(plane, place, slab, box) {
    const [across, down, through] = AXES[plane];
    const [low, high] = [box.slice(0, 3), box.slice(3)].map((shares) => this.point(shares));
    const [middle, reach] = [this.depth(plane, place), (this.reach(through, slab) + 0.5) * this.spacing[through]];
    if (high[through] <= middle - reach || low[through] >= middle + reach) return null;
    return [[low, low], [high, low], [high, high], [low, high]].map(([one, other]) => {
      const corner = [0, 0, 0];
      [corner[across], corner[down], corner[through]] = [one[across], other[down], middle];
      return corner;
    });
  }

  /** The slices of a slab before and after its middle one. */
  reach(through, slab) {
    return Math.round(slab / this.spacing[through] / 2);
  }

  /** The middle of a slice's plane on its axis, in mm. */
  depth(plane, place) {
    return (place + 0.5) * this.spacing[AXES[plane][2]];
  }

  /** The slice of a plane that a point (x, y, z in mm) lies in. */
  at(plane, point) {
    const axis = AXES[plane][2];
    return Math.min(Math.max(Math.floor(point[axis] / this.spacing[axis]), 0), this.size[axis] - 1);
  }

  /** Where a point lies, in shares of the scan (z, y, x). */
  shares(point) {
    return [2, 1, 0].map((axis) => point[axis] / (this.size[axis] * this.spacing[axis]));
  }

  /** The point (x, y, z in mm) of shares (z, y, x). */
  point(shares) {
    return [0, 1, 2].map((axis) => shares[2 - axis] * this.size[axis] * this.spacing[axis]);
  }
}
