// The tools of cornerstone3D as this viewer has them, and what was measured. Lengths are mm of the file's spacing, else pixels.

import {
  AngleTool, EllipticalROITool, LengthTool, PanTool, ProbeTool, RectangleROITool, StackScrollTool, ToolEnums, ToolGroupManager, WindowLevelTool,
  ZoomTool, addTool, annotation, eventTarget, initTools,
} from "../vendor/cornerstone/cornerstone.js";
import { subjectOf } from "./subjects.js";

const { MouseBindings, KeyboardBindings, Events } = ToolEnums;
export const CROSSHAIRS = "Crosshairs";
export const MAGNIFIER = "Magnifier";
const COLOURS = { color: "rgb(255, 214, 90)", colorHighlighted: "rgb(140, 240, 160)", colorSelected: "rgb(140, 240, 160)", textBoxFontSize: "14px", textBoxFontFamily: "system-ui, sans-serif", lineWidth: "1.6" };
const plain = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1));
const id = (target) => target.replace(/^imageId:/, "");

/** Widths of heart and thorax: two lines on one image; the shorter one by the longer one. */
class RatioTool extends LengthTool {
  static toolName = "CardiothoracicRatio";
}

/** The lines of a kind on an image, the longest last, with their lengths. */
function linesOn(name, target) {
  const all = annotation.state.getAllAnnotations().filter((one) => one.metadata.toolName === name && one.data.cachedStats?.[target]?.length > 0);
  return all.map(({ data }) => data.cachedStats[target]).sort((one, other) => one.length - other.length);
}

function lengthLines({ cachedStats }, target) {
  const { length, unit } = cachedStats[target] ?? {};
  return length > 0 ? [`${plain(length)} ${unit}`] : undefined;
}

function ratioLines({ cachedStats }, target) {
  const [heart, thorax] = linesOn(RatioTool.toolName, target);
  const { length, unit } = cachedStats[target] ?? {};
  if (!(length > 0)) return undefined;
  if (!thorax) return [`${plain(length)} ${unit}`, "now the other width"];
  return length < thorax.length ? [`heart ${plain(length)} ${unit}`] : [`thorax ${plain(length)} ${unit}`, `ratio ${(heart.length / thorax.length).toFixed(2)}`];
}

const between = (one, other) => Math.hypot(...one.map((value, axis) => value - other[axis]));

/** The area of a rectangle's corners (upper left, upper right, lower left, lower right), or of an ellipse's ends (down, up, left, right), in mm² or pixels. */
function areaOf(points, isEllipse) {
  // The area that cornerstone3D 4.22 gives for an ellipse has the spacing in it twice.
  return isEllipse ? (Math.PI / 4) * between(points[0], points[1]) * between(points[2], points[3]) : between(points[0], points[1]) * between(points[0], points[2]);
}

/** Mean, deviation and range within an outline, in what the numbers stand for. */
function regionLines({ cachedStats, handles }, target, isEllipse) {
  const { areaUnit, mean, stdDev, min, max } = cachedStats[target] ?? {};
  if (typeof mean !== "number") return undefined;
  const subject = subjectOf(id(target));
  const value = (number) => subject.valueOf(number, id(target));
  const [low, high] = [value(min), value(max)].sort((one, other) => one - other);
  const deviation = Math.abs(value(mean + stdDev) - value(mean));
  return [`mean ${plain(value(mean))} ${subject.unit}`.trim(), `SD ${plain(deviation)}, ${plain(low)} to ${plain(high)}`, `${plain(areaOf(handles.points, isEllipse))} ${areaUnit}`];
}

function probeLines({ cachedStats }, target) {
  const { value, index } = cachedStats[target] ?? {};
  if (typeof value !== "number" || !index) return undefined;
  const subject = subjectOf(id(target));
  return [`${plain(subject.valueOf(value, id(target)))} ${subject.unit}`.trim(), `at ${index[0]}, ${index[1]}`];
}

const TOOLS = [
  [WindowLevelTool, "Window"], [PanTool, "Pan"], [ZoomTool, "Zoom"], [StackScrollTool, "Scroll", { for: "CT" }],
  [LengthTool, "Length", { lines: lengthLines }], [AngleTool, "Angle"], [RatioTool, "CTR", { for: "DX", lines: ratioLines, title: "Cardiothoracic ratio: draw both widths" }],
  [RectangleROITool, "Rectangle", { lines: regionLines }], [EllipticalROITool, "Ellipse", { lines: (data, target) => regionLines(data, target, true) }], [ProbeTool, "Probe", { lines: probeLines }],
];

/** Tools for a kind of images, as [name, words, title]. */
export function toolsFor(modality) {
  const all = TOOLS.filter(([, , more]) => !more?.for || more.for === modality).map(([tool, words, more]) => [tool.toolName, words, more?.title ?? words]);
  all.push([MAGNIFIER, "Magnifier", "Three times as large where the pointer is"]);
  return modality === "CT" ? [...all, [CROSSHAIRS, "Crosshairs", "The point that all three planes go through"]] : all;
}

let isReady = false;
let groups = 0;

/** The tools of some viewports, of which one is in the hand. */
export class Hand {
  constructor(modality, changed) {
    if (!isReady) {
      isReady = true;
      initTools();
      for (const [tool] of TOOLS) addTool(tool);
      annotation.config.style.setDefaultToolStyles({ ...annotation.config.style.getDefaultToolStyles(), global: { ...annotation.config.style.getDefaultToolStyles().global, ...COLOURS } });
    }
    [this.modality, this.changed] = [modality, changed];
    this.group = ToolGroupManager.createToolGroup(`radweave-${(groups += 1)}`);
    for (const [tool, , more] of TOOLS) this.group.addTool(tool.toolName, more?.lines && { getTextLines: more.lines });
    this.events = [Events.ANNOTATION_COMPLETED, Events.ANNOTATION_MODIFIED, Events.ANNOTATION_REMOVED, Events.ANNOTATION_SELECTION_CHANGE];
    for (const one of this.events) eventTarget.addEventListener(one, changed);
    this.take(WindowLevelTool.toolName);
  }

  destroy() {
    for (const one of this.events) eventTarget.removeEventListener(one, this.changed);
    annotation.state.removeAllAnnotations();
    ToolGroupManager.destroyToolGroup(this.group.id);
  }

  hold(film) {
    this.group.addViewport(film.id, film.engine.id);
  }

  /** Take a tool for the left button and one finger. The right button is the window's, the middle one moves, two fingers move and zoom. */
  take(name) {
    this.held = name;
    const bindings = new Map(TOOLS.map(([tool]) => [tool.toolName, []]));
    bindings.get(name)?.push({ mouseButton: MouseBindings.Primary }, { numTouchPoints: 1 });
    bindings.get("WindowLevel").push({ mouseButton: MouseBindings.Secondary });
    bindings.get("Pan").push({ mouseButton: MouseBindings.Auxiliary }, ...[KeyboardBindings.Shift, KeyboardBindings.Ctrl].map((modifierKey) => ({ mouseButton: MouseBindings.Primary, modifierKey })));
    bindings.get("Zoom").push({ numTouchPoints: 2 }, ...(this.modality === "CT" ? [] : [{ mouseButton: MouseBindings.Wheel }]));
    if (this.modality === "CT") bindings.get("StackScroll").push({ mouseButton: MouseBindings.Wheel });
    for (const [tool] of TOOLS) this.group.setToolPassive(tool.toolName, { removeAllBindings: true });
    for (const [tool, some] of bindings) if (some.length) this.group.setToolActive(tool, { bindings: some });
  }

  /** What was measured, as {uid, words, image, lines}; the last one last. */
  measured() {
    return annotation.state.getAllAnnotations().flatMap(({ annotationUID: uid, metadata, data }) => {
      const [, words, more] = TOOLS.find(([tool]) => tool.toolName === metadata.toolName) ?? [];
      const target = Object.keys(data.cachedStats ?? {})[0];
      if (!words || !target) return [];
      const lines = more?.lines ? more.lines(data, target) : [`${plain(data.cachedStats[target].angle ?? 0)}°`];
      return lines ? [{ uid, words, image: id(target), lines }] : [];
    });
  }

  remove(uid) {
    annotation.state.removeAnnotation(uid);
  }

  /** Remove what is selected, else what was measured last. */
  removeOne() {
    const uid = annotation.selection.getAnnotationsSelected()[0] ?? annotation.state.getAllAnnotations().at(-1)?.annotationUID;
    if (uid) this.remove(uid);
  }
}
