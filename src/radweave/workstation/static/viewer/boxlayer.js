// Boxes of findings over an image: on a radiograph, or where a slice of a scan cuts them, whatever way the image is turned.

const SVG = "http://www.w3.org/2000/svg";
const ABOVE = 5;
const LINE = 15;

function drawn(tag, attributes, words = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = words;
  return element;
}

/** The corners of a box on a film, in pixels of the element; null where it is not on what is shown. */
function cornersOn(film, box) {
  if (film.plane) return box.length === 6 ? film.subject.outline(film.plane, film.index, film.slab, box)?.map((point) => film.viewport.worldToCanvas(point)) ?? null : null;
  if (box.length !== 4) return null;
  const [left, top, right, bottom] = box;
  const { width, height } = film.size;
  return [[left, top], [right, top], [right, bottom], [left, bottom]].map(([x, y]) => film.toCanvas([x * width, y * height]));
}

/** What a film may turn by: boxes stay upright rectangles. */
function edges(corners) {
  const [xs, ys] = [0, 1].map((axis) => corners.map((corner) => corner[axis]));
  return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
}

export class BoxLayer {
  /** `marks` are what all films share: `boxes` as [{ key, finding, image, box }], the `marked` keys, and `isHidden`. */
  constructor(marks) {
    [this.marks, this.shown] = [marks, []];
    this.svg = drawn("svg", { class: "rv-boxes", "aria-hidden": "true" });
  }

  draw(film) {
    const { boxes, marked, isHidden } = this.marks;
    const own = isHidden ? [] : boxes.filter(({ image }) => image === film.subject.name);
    this.shown = own.map((one) => ({ ...one, corners: cornersOn(film, one.box) })).filter(({ corners }) => corners).map((one) => ({ ...one, ...edges(one.corners) }));
    const last = [...this.shown].sort((one, other) => marked.has(one.key) - marked.has(other.key));
    const named = new Set(); // once on a film: several boxes of a finding may lie close together
    this.svg.replaceChildren(...last.flatMap(({ key, finding, corners, left, top, bottom }) => {
      const isMarked = marked.has(key);
      const points = corners.map((corner) => corner.join()).join(" ");
      const outline = [drawn("polygon", { points, class: "rv-under" }), drawn("polygon", { points, class: isMarked ? "rv-box rv-marked" : "rv-box", "data-key": key })];
      if (!isMarked || named.has(finding)) return outline;
      named.add(finding);
      return [...outline, drawn("text", { x: left, y: top > LINE + ABOVE ? top - ABOVE : bottom + LINE }, finding)];
    }));
  }

  /** The sentences of the smallest box at a place of the element. */
  at([x, y]) {
    const size = ({ left, right, top, bottom }) => (right - left) * (bottom - top);
    const here = this.shown.filter(({ left, right, top, bottom }) => left <= x && x <= right && top <= y && y <= bottom);
    const least = Math.min(...here.map(size));
    return [...new Set(here.filter((one) => size(one) <= least).map(({ key }) => key))];
  }
}
