// Colours of maps: dark blue to yellow, which eyes without red or green tell apart, ever lighter. A line at half of the
// peak says the same without colours. The pages of `radweave explain` have the same.

export const STOPS = [[0, [20, 50, 130]], [0.5, [0, 160, 160]], [1, [250, 230, 60]]];
export const LINE_AT = 0.5;

/** Red, green, blue and opacity (0 to 255) of a share of the peak. */
export function colourOf(share) {
  const above = Math.max(1, STOPS.findIndex(([place]) => place >= share));
  const [[from, low], [to, high]] = [STOPS[above - 1], STOPS[above]];
  const part = (share - from) / (to - from);
  return [...low.map((value, channel) => Math.round(value + part * (high[channel] - value))), Math.round(255 * Math.min(1, 1.5 * share))];
}

export const RAMP = Array.from({ length: 256 }, (_, step) => colourOf(step / 255));

/** A map (rows, columns) drawn smooth: linear between the middles of its cells, the same beyond the outermost. */
export function drawGrid({ shape: [rows, columns], values }, longest = 384) {
  const scale = longest / Math.max(rows, columns);
  const [height, width] = [Math.round(rows * scale), Math.round(columns * scale)];
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const image = new ImageData(width, height);
  const steps = new Uint8Array(width * height);
  for (let y = 0; y < height; y += 1) {
    const [top, bottom, down] = between(y, height, rows);
    for (let x = 0; x < width; x += 1) {
      const [left, right, across] = between(x, width, columns);
      const upper = values[top * columns + left] * (1 - across) + values[top * columns + right] * across;
      const lower = values[bottom * columns + left] * (1 - across) + values[bottom * columns + right] * across;
      steps[y * width + x] = Math.round(upper * (1 - down) + lower * down);
    }
  }
  for (let place = 0; place < steps.length; place += 1) {
    image.data.set(isBorder(steps, place, width) ? [255, 255, 255, 255] : RAMP[steps[place]], 4 * place);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function between(place, count, cells) {
  const position = Math.min(Math.max(((place + 0.5) / count) * cells - 0.5, 0), cells - 1);
  const low = Math.floor(position);
  return [low, Math.min(low + 1, cells - 1), position - low];
}

function isBorder(steps, place, width) {
  const inside = steps[place] >= 255 * LINE_AT;
  const right = (place + 1) % width === 0 ? place : place + 1;
  const below = place + width < steps.length ? place + width : place;
  return inside !== (steps[right] >= 255 * LINE_AT) || inside !== (steps[below] >= 255 * LINE_AT);
}
