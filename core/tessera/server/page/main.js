// The page's frame: its views, the panels beside the chat, colors, and the list of models.

import { ApiError, requestJson } from "./api.js";
import { Chat } from "./chat.js";
import { number } from "./charts.js";
import { byId, element } from "./dom.js";
import { Engine } from "./engine.js";
import { load, save } from "./storage.js";
import { Texts } from "./texts.js";

const WIDE = matchMedia("(min-width: 68rem)"); // as in page.css
const PANELS = ["chats", "settings"];
const RETRY_MS = 2000;
let models = [];
let view = load("view", "chat");

// ---- the views: of those for a model, the ones for what it does -----------------------------------------------------

const TABS = { chat: byId("chat-tab"), texts: byId("texts-tab"), engine: byId("engine-tab") };
const GENERATE = "generate";
const OF_TEXTS = ["embed", "classify", "token_embed", "token_classify"];

function choose(chosen, focus = false) {
  view = chosen;
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
      choose(beside(name, event.key), true);
    }
  });
}

// The view that a key leads to from another.
function beside(name, key) {
  const offered = Object.keys(TABS).filter(one => !TABS[one].hidden), at = offered.indexOf(name);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[key];
  return offered.at(to % offered.length);
}

function offer(tasks) {
  TABS.chat.hidden = !tasks.includes(GENERATE);
  TABS.texts.hidden = !tasks.some(task => OF_TEXTS.includes(task));
  if (TABS[view].hidden) choose(["chat", "texts", "engine"].find(name => !TABS[name].hidden));
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
  for (const button of document.querySelectorAll("[data-forgets]")) button.hidden = load("key", null) === null;
  describeModel();
}

function describeModel() {
  const model = models.find(one => one.id === byId("model").value);
  byId("welcome-model").textContent = `${model.id} has ${number(model.max_model_len)} tokens of context.`;
  document.title = `${model.id} \u2013 Tessera`;
  chat.offerPictures(model.input_modalities?.includes("image") ?? false);
  if (model.tasks.some(task => OF_TEXTS.includes(task))) texts.describe(model);
  offer(model.tasks);
  save("tasks", model.tasks);
}

byId("model").addEventListener("change", () => {
  save("model", byId("model").value);
  describeModel();
});

// ---------------------------------------------------------------------------------------------------------------------

const engine = new Engine(byId("engine"), () => models);
const chat = new Chat({ onFieldProblem: () => openPanel("settings", true) });
const texts = new Texts(byId("texts"));

color(load("theme", null));
arrange();
choose(view);
offer(load("tasks", [GENERATE])); // until the server says it
if (WIDE.matches) byId("message").focus();
listModels();
