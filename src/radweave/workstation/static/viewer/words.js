// Values as files and pages hold them.

/** Words are little-endian, whatever this machine is. */
export function wordsOf(buffer) {
  if (new Uint8Array(new Uint16Array([1]).buffer)[0] === 1) return new Uint16Array(buffer);
  const view = new DataView(buffer);
  return Uint16Array.from({ length: buffer.byteLength / 2 }, (_, place) => view.getUint16(2 * place, true));
}
