// One's own password and tokens; for admins all users.

import { ask, me } from "./api.js";
import { alarm, at, button, clearAlarm, h, redraw, say, time } from "./dom.js";
import { dialog } from "./keys.js";
import "./frame.js";

async function tried(action) {
  clearAlarm();
  try {
    await action();
    return true;
  } catch (problem) {
    alarm(problem);
    return false;
  }
}

at("password").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (at("new").value !== at("again").value) return alarm("The two new passwords are not the same.");
  const given = { old: at("old").value, new: at("new").value };
  if (await tried(() => ask("PUT", `/users/${me.id}/password`, given))) {
    event.target.reset();
    tell("The password was changed.");
    await tried(drawTokens);
  }
});

/** Say something that is seen too. */
function tell(text) {
  alarm(text);
  at("alerts").firstChild.classList.add("fine");
}

async function drawTokens() {
  const { tokens } = await ask("GET", `/users/${me.id}/tokens`);
  redraw(at("tokens"), tokens.length ? tokenList(me.id, tokens, drawTokens) : h("p", {}, "None."));
}

function tokenList(user, tokens, again) {
  return h("ul", { class: "plain" }, tokens.map((one) => h("li", { class: "row spread" },
    h("span", {}, h("code", {}, one.id), " made ", time(one.created)),
    button("Take back", async () => { if (await tried(() => ask("DELETE", `/users/${user}/tokens/${one.id}`))) { say("The token was taken back."); await again(); } },
      { "aria-label": `Take back token ${one.id}` }))));
}

async function drawUsers() {
  const { users } = await ask("GET", "/users");
  redraw(at("users"), h("table", {}, h("thead", {}, h("tr", {}, ["Name", "Role", "Since", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "visually-hidden" }, "Actions"))))),
    h("tbody", {}, users.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name, one.disabled && " (disabled)"), h("td", {}, one.role), h("td", {}, time(one.created)),
      h("td", {}, h("div", { class: "row" }, button("New token", () => newToken(one), { "aria-label": `New token for ${one.name}` }),
        button("Tokens", () => showTokens(one), { "aria-label": `Tokens of ${one.name}` }),
        one.id !== me.id && !one.is_of_provider && button("New password", () => newPassword(one), { "aria-label": `New password for ${one.name}` }),
        one.id !== me.id && button(one.disabled ? "Enable" : "Disable", () => setDisabled(one), { "aria-label": `${one.disabled ? "Enable" : "Disable"} ${one.name}` }))))))));
}

async function setDisabled(user) {
  if (await tried(() => ask("PATCH", `/users/${user.id}`, { disabled: !user.disabled }))) {
    tell(user.disabled ? `${user.name} may log in again.` : `${user.name} is disabled; its sessions and tokens ended.`);
    await tried(drawUsers);
  }
}

async function newToken(user) {
  await tried(async () => {
    const { token } = await ask("POST", `/users/${user.id}/token`);
    const shown = dialog(`Token for ${user.name}`, h("p", {}, "It is shown this once:"), h("p", {}, h("code", { class: "secret" }, token)),
      h("p", {}, button("Close", () => { shown.close(); if (user.id === me.id) drawTokens(); }, { class: "main" })));
  });
}

async function showTokens(user) {
  await tried(async () => {
    const { tokens } = await ask("GET", `/users/${user.id}/tokens`);
    const shown = dialog(`Tokens of ${user.name}`, tokens.length ? tokenList(user.id, tokens, async () => shown.close()) : h("p", {}, "None."),
      h("p", {}, button("Close", () => shown.close(), { class: "main" })));
  });
}

function newPassword(user) {
  const field = h("input", { id: "others-password", type: "password", autocomplete: "new-password" });
  const shown = dialog(`New password for ${user.name}`, h("p", {}, h("label", { for: "others-password" }, "Password"), " ", field),
    h("p", { class: "actions" }, button("Set it", async () => {
      shown.close();
      if (await tried(() => ask("PUT", `/users/${user.id}/password`, { new: field.value }))) tell(`The password of ${user.name} was changed; its sessions ended.`);
    }, { class: "main" }), button("Not now", () => shown.close())));
}

at("add-user")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = { name: at("user-name").value, role: at("user-role").value, password: at("user-password").value || null };
  if (await tried(() => ask("POST", "/users", given))) {
    event.target.reset();
    await tried(drawUsers);
  }
});

tried(drawTokens);
if (me.role === "admin") tried(drawUsers);

// The template that the editor offers.
async function drawTemplate(loaded = null) {
  const { template } = loaded ?? await ask("GET", "/template");
  if (!template) return redraw(at("template"), h("p", {}, "None is loaded."));
  const kept = template.sections.map(({ section, lines }) => `${section} ${lines.length}`).join(", ");
  const dropped = Object.entries(loaded?.dropped ?? {}).map(([name, count]) => `${count} ${name}`).join(", ");
  return redraw(at("template"), h("p", {}, h("b", {}, template.title || "without a title"), `; lines: ${kept}. `,
    button("Remove", async () => { if (await tried(() => ask("DELETE", "/template"))) await drawTemplate(); }, { "aria-label": "Remove the template" })),
  dropped && h("p", { class: "soft" }, `Not taken over: ${dropped}.`),
  loaded?.left_out.length > 0 && h("p", { class: "soft" }, `Sections that a report here does not have: ${loaded.left_out.join(", ")}.`));
}

at("template-file")?.addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (file) await tried(async () => drawTemplate(await ask("PUT", "/template", { html: await file.text() })));
});
if (at("template")) drawTemplate().catch(alarm);
