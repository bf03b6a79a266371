// The images and maps that a page holds, given as the viewer asks for them.

import { wordsOf } from "./viewer/words.js";

/** Values that lie in the page: deflated, in base64. */
export async function inflated(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

export class Embedded {
  /** `maps` are maps by finding, with a grid for each image. */
  constructor(maps) {
    this.maps = maps;
    this.held = new Map();
  }

  words(name) {
    if (!this.held.has(name)) this.held.set(name, inflated(`words-${name}`).then(wordsOf));
    return this.held.get(name);
  }

  async table(name) {
    return wordsOf(await inflated(`table-${name}`));
  }

  async map(finding) {
    return this.maps[finding];
  }
}
