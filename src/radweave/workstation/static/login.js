// Log in with a name and password, or a token: typed, or in the link that the server prints at its first start.

import { ask } from "./api.js";
import { alarm, at, clearAlarm } from "./dom.js";
import "./frame.js";

/** Where to go then: only to a page of ours. */
function next() {
  const wanted = new URLSearchParams(location.search).get("next") ?? "";
  return /^\/(studies|account|log)(\/[0-9a-f]+)?$/.test(wanted) ? wanted : "/studies";
}

async function enter(given) {
  clearAlarm();
  try {
    await ask("POST", "/session", given);
    location.replace(next());
  } catch (problem) {
    alarm(problem.wait ? `${problem.message}. Try again in ${problem.wait} s.` : problem);
  }
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = at("token").value.trim();
  enter(token ? { token } : { name: at("name").value, password: at("password").value });
});

const provider = document.getElementById("provider");
if (provider) provider.href = `/login/openid?next=${encodeURIComponent(next())}`;

/** What follows # is never sent to a server and stands in no log; it leaves the address bar at once. */
function enterByLink() {
  const linked = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!linked) return;
  history.replaceState(null, "", location.pathname + location.search);
  enter({ token: linked });
}

// The link may be pasted into a tab that shows this page already.
window.addEventListener("hashchange", enterByLink);
enterByLink();
