// The next study's draft and images, fetched while the reader is at this one: one study at a time, and no more than fits.

import { ask } from "./api.js";
import { Source } from "./viewer/source.js";

const MOST_BYTES = 192 * 2 ** 20;
let fetched = null;

const bytesOf = ({ rows, columns }) => 2 * (rows ?? 0) * (columns ?? 0);

/** Let go of what was fetched ahead, unless it is of this study; requests on their way end. */
export function dropAhead(kept = null) {
  if (!fetched || fetched.id === kept) return;
  fetched.source.stop();
  fetched = null;
}

/** Fetch a study's draft and images ahead. */
export async function fetchAhead(id) {
  dropAhead(id);
  if (fetched) return;
  const mine = (fetched = { id, source: new Source(id, { ahead: true }), study: null });
  try {
    mine.study = await ask("GET", `/studies/${id}?ahead=true`);
    const { images } = await mine.source.list();
    let room = MOST_BYTES;
    for (const one of images) {
      if (fetched !== mine) return;
      if (one.problem) continue;
      if (one.kind === "volume") {
        await mine.source.volume(one.name, room);
        return; // one scan
      }
      room -= bytesOf(one);
      if (room < 0) return;
      await mine.source.words(one.name);
    }
  } catch {
    // What could not be had ahead is asked for again when the study is opened.
  }
}

/** What was fetched ahead of a study, which from now on is in use; null where nothing was. */
export function takeAhead(id) {
  if (fetched?.id !== id) return null;
  const taken = fetched;
  fetched = null;
  return taken;
}

export const aheadOf = () => fetched?.id ?? null;
