// An image at its own size, at half of it, a quarter …, so that a window costs as much as the screen has pixels, not the file.

const SMALLEST = 256;

/** The image and its halves: means of four words; where one of them is padding, all are. */
export function levelsOf(words, columns, rows, padding) {
  const levels = [{ words, columns, rows }];
  while (Math.max(levels.at(-1).columns, levels.at(-1).rows) > 2 * SMALLEST) levels.push(half(levels.at(-1), padding));
  return levels;
}

function half({ words, columns, rows }, padding) {
  const [wide, tall] = [Math.ceil(columns / 2), Math.ceil(rows / 2)];
  const made = new Uint16Array(wide * tall);
  for (let y = 0; y < tall; y += 1) {
    const [upper, lower] = [2 * y * columns, Math.min(2 * y + 1, rows - 1) * columns];
    for (let x = 0; x < wide; x += 1) {
      const [left, right] = [2 * x, Math.min(2 * x + 1, columns - 1)];
      const [a, b, c, d] = [words[upper + left], words[upper + right], words[lower + left], words[lower + right]];
      made[y * wide + x] = a === padding || b === padding || c === padding || d === padding ? padding : (a + b + c + d + 2) >> 2;
    }
  }
  return { words: made, columns: wide, rows: tall };
}

/** What of which level is needed for an image drawn (left, top, width, height) on a canvas of (across, down) dots. */
export function visible(levels, [left, top, width, height], [across, down]) {
  const [columns, rows] = [levels[0].columns, levels[0].rows];
  let number = 0;
  while (number + 1 < levels.length && Math.max(width / columns, height / rows) * 2 ** (number + 1) <= 1) number += 1;
  const [stepX, stepY] = [(width / columns) * 2 ** number, (height / rows) * 2 ** number];
  const level = levels[number];
  const within = (value, most) => Math.min(Math.max(value, 0), most);
  const x = within(Math.floor(-left / stepX) - 1, level.columns);
  const y = within(Math.floor(-top / stepY) - 1, level.rows);
  const wide = within(Math.ceil((across - left) / stepX) + 1, level.columns) - x;
  const tall = within(Math.ceil((down - top) / stepY) + 1, level.rows) - y;
  return { number, x, y, wide, tall, at: [left + x * stepX, top + y * stepY, wide * stepX, tall * stepY] };
}
