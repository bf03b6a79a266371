// From a file's words to grey: DICOM PS3.3 C.11.1 (rescale) and C.11.2.1.2 (window), in single precision.
//
// A test compares it with the same in Python.

const f = Math.fround;

/** What a word stands for. */
export function valueOf(word, { first, slope, intercept }) {
  return f(f(f(first + word) * f(slope)) + f(intercept));
}

/** A value in a window, 0 to 1. `table` is the file's own, for a preset that asks for it. */
export function shownOf(value, preset, table) {
  const { function: kind, center, width } = preset;
  if (kind === "TABLE") {
    const place = Math.min(Math.max(Math.round(value) - preset.first, 0), table.length - 1);
    return f(table[place] / (2 ** preset.bits - 1));
  }
  if (kind === "SIGMOID") return f(1 / (1 + Math.exp(Math.min(Math.max((-4 * (value - center)) / width, -80), 80))));
  if (kind === "LINEAR_EXACT") return clipped(f(f(f(value - f(center)) / f(width)) + 0.5));
  if (width === 1) return value > center - 0.5 ? 1 : 0;
  return clipped(f(f(f(value - f(center - 0.5)) / f(width - 1)) + 0.5));
}

const clipped = (share) => Math.min(Math.max(share, 0), 1);
