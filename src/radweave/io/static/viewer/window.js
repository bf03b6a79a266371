// From a file's words to grey: DICOM PS3.3 C.11.1 (rescale) and C.11.2.1.2 (window), in single precision.
//
// shown_bytes in io/viewer.py computes the same; a test compares them. Nothing here knows of a page.

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

/** Grey, 0 to 255, of every word that an image may hold. `inverted` is the reader's wish. */
export function greyTable(about, preset, { inverted = false, table = null } = {}) {
  const greys = new Uint8Array(65536);
  const turned = about.inverted !== inverted;
  for (let word = 0; word < 65536; word += 1) {
    const shown = shownOf(valueOf(word, about), preset, table);
    greys[word] = Math.floor(f(f((turned ? f(1 - shown) : shown) * 255) + 0.5));
  }
  if (about.padding !== null) greys[about.padding] = 0;
  return greys;
}

/** The least width that a kind of window may have. */
export const narrowest = (kind) => (kind === "LINEAR" ? 1 : 1e-6);

/** A window moved by shares of `span` (the range of values): width across, level down. */
export function moved(preset, across, down, span) {
  const [center, width] = preset.function === "TABLE" ? [span.low + span.size / 2, span.size] : [preset.center, preset.width];
  const kind = preset.function === "TABLE" ? "LINEAR_EXACT" : preset.function;
  // Narrow windows are moved in finer steps: the step goes with the width.
  const step = Math.max(width, span.size / 500);
  return { name: null, function: kind, center: center + down * step, width: Math.max(width + across * step, narrowest(kind), span.size / 4096) };
}
