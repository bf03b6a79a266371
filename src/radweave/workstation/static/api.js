// Requests to the interface, with the token that changes must repeat; and what a refusal says.

const base = "/api/v1";
export let csrf = document.querySelector('meta[name="csrf"]')?.content ?? "";
const who = document.querySelector('meta[name="user"]');
export const me = who && { id: Number(who.content), name: who.dataset.name, role: who.dataset.role };

/** A request that was refused, or got no answer (status 0). */
export class Refused extends Error {
  constructor(status, problem = {}, wait = null) {
    super(Refused.words(status, problem));
    this.status = status;
    this.problem = problem;
    this.wait = wait;
  }

  static words(status, { reason, field, got, expected, fields }) {
    if (status === 0) return "The server does not answer.";
    if (status === 401 && csrf) return "You are logged out. Log in again in another tab; what you typed here stays.";
    const places = (fields ?? []).map((row) => `${row.field}: ${row.reason}`).join("; ");
    const details = [got && `got ${got}`, expected && `expected ${expected}`].filter(Boolean).join(", ");
    return `${field ? `${field}: ` : ""}${reason ?? `refused (${status})`}${details ? ` (${details})` : ""}${places ? `: ${places}` : ""}`;
  }
}

export function refused(status, text, wait) {
  try {
    return new Refused(status, JSON.parse(text).error, wait);
  } catch {
    return new Refused(status, {}, wait);
  }
}

/** Ask the interface; the answer's JSON, or null where there is none. Throws Refused. */
export async function ask(method, path, body, isAgain = false) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-CSRF-Token"] = csrf;
  let answer;
  try {
    answer = await fetch(base + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Refused(0);
  }
  const text = await answer.text();
  if (answer.ok) return text ? JSON.parse(text) : null;
  if (answer.status === 403 && method !== "GET" && !isAgain && (await isOtherSession())) return ask(method, path, body, true);
  throw refused(answer.status, text, Number(answer.headers.get("Retry-After")) || null);
}

/** Whether the same user logged in anew, in another tab: then that session's token goes on, and nothing typed is lost. */
async function isOtherSession() {
  const found = await ask("GET", "/session").catch(() => null);
  if (!found?.csrf || found.id !== me?.id || found.csrf === csrf) return false;
  csrf = found.csrf;
  return true;
}

/** A file of the interface: its bytes, and what it is to be called. Throws Refused. */
export async function fetched(path) {
  const answer = await fetch(base + path).catch(() => { throw new Refused(0); });
  if (!answer.ok) throw refused(answer.status, await answer.text(), Number(answer.headers.get("Retry-After")) || null);
  const name = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") ?? "")?.[1] ?? "report";
  return { blob: await answer.blob(), name };
}

/** Send files as one form, telling `progress` the share that is sent. */
export function send(files, { one, key, progress }) {
  const form = new FormData();
  for (const { file, name } of files) form.append("files", file, name);
  if (one) form.append("one_study", "true");
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", `${base}/studies`);
    request.setRequestHeader("X-CSRF-Token", csrf);
    request.setRequestHeader("Idempotency-Key", key);
    request.upload.onprogress = (event) => progress(event.lengthComputable ? event.loaded / event.total : null);
    request.onerror = () => reject(new Refused(0));
    request.onload = () => {
      if (request.status === 202) resolve(JSON.parse(request.responseText).studies);
      else reject(refused(request.status, request.responseText, Number(request.getResponseHeader("Retry-After")) || null));
    };
    request.send(form);
  });
}

/** Do something again and again while the page is seen; returns what ends it. */
export function repeat(action, seconds) {
  let timer = null, ended = false;
  const turn = async () => {
    clearTimeout(timer);
    if (ended) return;
    if (!document.hidden) await action().catch(() => {});
    if (!ended) timer = setTimeout(turn, 1000 * seconds);
  };
  const seen = () => { if (!document.hidden) turn(); };
  document.addEventListener("visibilitychange", seen);
  timer = setTimeout(turn, 1000 * seconds);
  return () => { ended = true; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); };
}
