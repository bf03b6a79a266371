// A study's images, maps and scans from the server.

import { wordsOf } from "./words.js";

const BUSY = 503;
const TRIES = 20;

const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

async function get(path, signal) {
  for (let tries = 1; ; tries += 1) {
    const answer = await fetch(path, { signal, credentials: "same-origin" });
    if (answer.ok) return answer;
    if (answer.status === BUSY && tries < TRIES) {
      await wait(Number(answer.headers.get("Retry-After")) || 2);
      continue;
    }
    const told = await answer.json().catch(() => null);
    throw new Error(told?.error?.reason ?? `The server answered ${answer.status}.`);
  }
}

/** What a viewer asks for; what was read once is held. */
export class Source {
  /** `ahead` says that the reader has not opened the study yet. */
  constructor(study, { ahead = false } = {}) {
    this.place = `/api/v1/studies/${encodeURIComponent(study)}`;
    this.stopped = new AbortController();
    this.held = new Map();
    this.isAhead = ahead;
  }

  /** The reader opens the study: its list is asked for anew, which the log records; pixels stay. */
  open() {
    this.isAhead = false;
    this.held.delete("images");
    return this;
  }

  stop() {
    this.stopped.abort();
    this.held.clear();
  }

  list() {
    return this.once("images", async (answer) => answer.json());
  }

  words(name) {
    return this.once(`images/${name}/pixels`, async (answer) => wordsOf(await answer.arrayBuffer()));
  }

  table(name) {
    return this.once(`images/${name}/table`, async (answer) => wordsOf(await answer.arrayBuffer()));
  }

  /** A scan as it comes, where it has at most `most` bytes. */
  volume(name, most = Infinity) {
    return this.once(`images/${name}/volume`, async (answer) => {
      if (!(Number(answer.headers.get("Content-Length")) > most)) return answer.arrayBuffer();
      await answer.body.cancel();
      throw new Error("The scan is too large to be fetched ahead.");
    });
  }

  /** Let go of what a path gave, once it lies elsewhere. */
  drop(path) {
    this.held.delete(path);
  }

  map(finding) {
    return this.once(`maps/${pathOf(finding)}`, async (answer) => answer.json());
  }

  async fresh(path, read) {
    return read(await get(`${this.place}/${path}${this.isAhead ? "?ahead=true" : ""}`, this.stopped.signal));
  }

  once(path, read) {
    if (!this.held.has(path)) {
      const asked = this.fresh(path, read);
      asked.catch(() => this.held.delete(path)); // it may be asked again
      this.held.set(path, asked);
    }
    return this.held.get(path);
  }
}

const pathOf = (finding) => finding.split("/").map(encodeURIComponent).join("/");
