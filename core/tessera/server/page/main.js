// The page's frame: its two views, the panels beside the chat, colors, and the list of models.

import { ApiError, requestJson } from "./api.js";
import { Chat } from "./chat.js";
import { number } from "./charts.js";
import { byId, element } from "./dom.js";
import { Engine } from "./engine.js";
import { load, save } from "./storage.js";

const WIDE = matchMedia("(min-width: 68rem)"); // as in page.css
const PANELS = ["chats", "settings"];
const RETRY_MS = 2000;
let models = [];

// ---- the two views --------------------------------------------------------------------------------------------------

const TABS = { chat: byId("chat-tab"), engine: byId("engine-tab") };

function choose(view, focus = false) {
  for (const [name, tab] of Object.entries(TABS)) {
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    byId(name).hidden = name !== view;
  }
  for (const name of PANELS) byId(`${name}-button`).hidden = view !== "chat";
  if (focus) TABS[view].focus();
  engine.show(view === "engine");
  save("view", view);
}

for (const [name, tab] of Object.entries(TABS)) {
  tab.addEventListener("click", () => choose(name));
  tab.addEventListener("keydown", event => {
    if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
      event.preventDefault();
      choose(event.key === "Home" || name === "engine" && event.key !== "End" ? "chat" : "engine", true);
    }
  });
}

// ---- the panels: beside the chat where there is room, otherwise over it ---------------------------------------------

function openPanel(name, open) {
  const panel = byId(name), over = open && !WIDE.matches;
  if (over) for (const other of PANELS) if (other !== name) openPanel(other, false);
  panel.classList.toggle("open", over);
  panel.hidden = !open;
  byId(`${name}-button`).setAttribute("aria-expanded", String(open));
  byId("conversation").inert = PANELS.some(one => byId(one).classList.contains("open"));
  document.body.classList.toggle("covered", byId("conversation").inert);
}

function closeOver() {
  const open = PANELS.find(name => byId(name).classList.contains("open"));
  if (!open) return;
  openPanel(open, false);
  byId(`${open}-button`).focus();
}

for (const name of PANELS) {
  byId(`${name}-button`).addEventListener("click", () => {
    openPanel(name, byId(name).hidden);
    if (byId(name).classList.contains("open")) byId(name).querySelector(".close").focus();
  });
  byId(name).querySelector(".close").addEventListener("click", closeOver);
}
document.addEventListener("keydown", event => {
  if (event.key === "Escape") closeOver();
});
byId("chat").addEventListener("click", event => {
  if (event.target === byId("chat")) closeOver(); // beside the panel
});
byId("chat-list").addEventListener("click", event => {
  if (event.target.closest(".chat-link")) closeOver();
});
byId("new-chat").addEventListener("click", closeOver);

function arrange() {
  for (const name of PANELS) openPanel(name, WIDE.matches);
}
WIDE.addEventListener("change", arrange);

// ---- colors --------------------------------------------------------------------------------------------------------

const DARK = matchMedia("(prefers-color-scheme: dark)");

function color(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", String((theme ?? (DARK.matches ? "dark" : "light")) === "dark"));
}

byId("theme").addEventListener("click", () => {
  const theme = byId("theme").getAttribute("aria-pressed") === "true" ? "light" : "dark";
  save("theme", theme);
  color(theme);
});
DARK.addEventListener("change", () => color(load("theme", null)));

// ---- models ---------------------------------------------------------------------------------------------------------

async function listModels() {
  const select = byId("model");
  try {
    models = (await requestJson("v1/models")).data;
    await engine.describe();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    chat.warn(error.message);
    if (error.status === 0 || error.status === 503) setTimeout(listModels, RETRY_MS); // it may be starting
    return;
  }
  chat.warn("");
  select.replaceChildren(...models.map(model => element("option", {}, model.id)));
  const chosen = load("model", null);
  if (models.some(model => model.id === chosen)) select.value = chosen;
  byId("forget-key").hidden = load("key", null) === null;
  describeModel();
}

function describeModel() {
  const model = models.find(one => one.id === byId("model").value);
  byId("welcome-model").textContent = model ? `${model.id} has ${number(model.max_model_len)} tokens of context.` : "";
  document.title = model ? `${model.id} \u2013 Tessera` : "Tessera";
}

byId("model").addEventListener("change", () => {
  save("model", byId("model").value);
  describeModel();
});

// ---------------------------------------------------------------------------------------------------------------------

const engine = new Engine(byId("engine"), () => models);
const chat = new Chat({ onFieldProblem: () => openPanel("settings", true) });

color(load("theme", null));
arrange();
choose(load("view", "chat"));
if (WIDE.matches) byId("message").focus();
listModels();
