// The chat: sends messages, shows answers as they come, and keeps the chats of this tab.

import { Announcer } from "./announcer.js";
import { ApiError, events, request } from "./api.js";
import { Conversation, extend, message, parts, userMessage } from "./conversation.js";
import { curl } from "./curl.js";
import { byId, element, sends, textButton } from "./dom.js";
import { FieldError, Fields } from "./fields.js";
import { messageView } from "./messages.js";
import { Pictures } from "./pictures.js";
import { load, save } from "./storage.js";

const ROUTE = "v1/chat/completions";
const NEAR = 80; // pixels from the end within which the view follows the answer
const MOST_CHATS = 50;
const TOO_SHORT = 0.01; // seconds, below which a speed says nothing
const EXAMPLES = [
  "What is the capital of France?",
  "What is 12 plus 30?",
  "Give me JSON with the keys name and age for Anna, 31.",
];

export class Chat {
  // onFieldProblem: shows the panel of parameters.
  constructor({ onFieldProblem }) {
    this.onFieldProblem = onFieldProblem;
    this.chats = load("chats", []).map(stored => new Conversation(stored));
    if (!this.chats.length) this.chats.push(new Conversation());
    this.current = this.chats[0];
    this.views = [];
    this.abort = null; // of the answer that is being generated
    this.announcer = new Announcer(byId("spoken"));
    this.fields = new Fields(byId("fields"), { curl: () => this.curl() });
    this.input = byId("message");
    this.pictures = new Pictures(text => this.warn(text));
    this.scroller = byId("scroller");
    this.listen();
    this.show();
    this.listChats();
  }

  listen() {
    byId("composer").addEventListener("submit", event => {
      event.preventDefault();
      this.send(this.input.value);
    });
    this.input.addEventListener("input", () => this.fit());
    this.input.addEventListener("keydown", event => {
      if (!sends(event)) return;
      event.preventDefault();
      this.send(this.input.value);
    });
    byId("stop").addEventListener("click", () => this.stop());
    document.addEventListener("keydown", event => {
      if (event.key === "Escape" && !event.target.closest("dialog, .edit, .panel.open")) this.stop();
    });
    byId("new-chat").addEventListener("click", () => this.open(new Conversation()));
    byId("jump").addEventListener("click", () => {
      this.toEnd();
      this.input.focus();
    });
    const moved = () => { byId("jump").hidden = this.atEnd(); };
    this.scroller.addEventListener("scroll", moved);
    new ResizeObserver(moved).observe(this.scroller);
    addEventListener("pagehide", () => this.keep());
    byId("suggestions").append(...EXAMPLES.map(text => element("li", {},
      element("button", { type: "button", class: "suggestion", onclick: () => this.send(text) }, text))));
  }

  // ---- what the user does ----

  send(text) {
    if (!text.trim() && !this.pictures.urls.length || this.abort) return;
    if (!this.valid()) return;
    this.input.value = "";
    this.fit();
    const last = this.current.path().at(-1) ?? null;
    this.answer(this.current.add(last, userMessage(text, this.pictures.take())));
    this.input.focus();
  }

  // Whether the model takes pictures.
  offerPictures(offered) {
    this.pictures.offer(offered);
  }

  edit(node, text) {
    this.stop();
    if (!this.valid()) return;
    this.answer(this.current.add(this.current.parentOf(node), userMessage(text, node.pictures)));
    this.input.focus();
  }

  regenerate(node) {
    this.stop();
    if (!this.valid()) return;
    this.current.leaf = node.parent;
    this.answer(this.current.parentOf(node));
    this.input.focus();
  }

  giveResults(results) {
    if (!this.valid()) return;
    let last = this.current.path().at(-1);
    for (const result of results) last = this.current.add(last, { role: "tool", ...result });
    this.answer(last);
    this.input.focus();
  }

  showVersion(node) {
    this.stop();
    this.current.show(node);
    this.show();
    this.keep();
  }

  stop() {
    this.abort?.abort();
  }

  // Whether the parameters can be sent; if not, shows which cannot.
  valid() {
    this.warn("");
    try {
      this.fields.body();
      return true;
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      this.warn(error.message);
      this.onFieldProblem();
      error.control.focus();
      return false;
    }
  }

  warn(text) {
    byId("alert").textContent = text;
    byId("alert").hidden = !text;
  }

  // ---- an answer ----

  body(last) {
    return {
      model: this.model(),
      messages: this.current.messages(this.fields.system, last),
      stream: true,
      stream_options: { include_usage: true },
      ...this.fields.body(),
    };
  }

  model() {
    return byId("model").value;
  }

  // Generates the answer to the messages up to `last`.
  async answer(last) {
    const chat = this.current, abort = new AbortController();
    const body = this.body(last);
    const node = chat.add(last, { role: "assistant", model: body.model });
    this.abort = abort;
    this.show();
    this.toEnd();
    const view = this.views.at(-1);
    this.busy(view, true);
    this.announcer.begin();
    this.keep();
    try {
      await this.stream(node, view, body, abort.signal);
    } catch (error) {
      if (error.name === "AbortError") node.finish = "stopped";
      else if (error instanceof ApiError) node.error = error.message;
      else throw error;
    } finally {
      if (this.abort !== abort) { // another answer has begun
        view.update();
      } else {
        this.abort = null;
        this.busy(view, false);
        const ending = node.finish === "stopped" ? "Stopped." : "End of the answer.";
        this.announcer.finish(parts(node).content, node.error ?? ending);
      }
      this.keep();
      this.listChats();
    }
  }

  async stream(node, view, body, signal) {
    const began = performance.now();
    let first = 0, pieces = 0, frame = 0;
    const draw = () => {
      frame = 0;
      const follow = this.atEnd();
      view.update(true);
      this.announcer.update(parts(node).content);
      if (follow) this.toEnd();
    };
    try {
      for await (const chunk of events(await request(ROUTE, { body, signal }))) {
        if (!extend(node, chunk)) continue;
        first ||= performance.now();
        pieces++;
        frame ||= requestAnimationFrame(draw);
      }
    } finally {
      cancelAnimationFrame(frame);
      const seconds = (performance.now() - first) / 1000;
      node.tokens ??= pieces; // a stopped stream has no usage
      if (first) node.first = (first - began) / 1000;
      if (first && node.tokens > 1 && seconds > TOO_SHORT) node.rate = (node.tokens - 1) / seconds;
    }
  }

  busy(view, growing) {
    const follow = this.atEnd(), focused = document.activeElement === byId("stop");
    byId("send").hidden = growing;
    byId("stop").hidden = !growing;
    view.update(growing);
    if (focused) this.input.focus();
    if (follow) this.toEnd();
  }

  // ---- what is shown ----

  show() {
    const path = this.current.path();
    const kept = path.findIndex((node, index) => this.views[index]?.node !== node);
    for (const view of this.views.splice(kept === -1 ? path.length : kept)) view.root.remove();
    for (const node of path.slice(this.views.length)) {
      const view = messageView(node, this.actions());
      this.views.push(view);
      byId("messages").append(view.root);
    }
    for (const view of this.views) view.update();
    byId("welcome").hidden = path.length > 0;
    byId("jump").hidden = this.atEnd();
  }

  actions() {
    return {
      edit: (node, text) => this.edit(node, text),
      regenerate: node => this.regenerate(node),
      giveResults: results => this.giveResults(results),
      show: node => this.showVersion(node),
      versions: node => this.current.versions(node),
      openCalls: () => this.current.openCalls(),
      isLast: node => this.current.path().at(-1) === node,
    };
  }

  atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    byId("jump").hidden = true;
  }

  // The composer is as high as its text.
  fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
  }

  // ---- the chats of this tab ----

  open(chat) {
    this.stop();
    this.chats = [chat, ...this.chats.filter(other => other !== chat && other.leaf !== null)].slice(0, MOST_CHATS);
    this.current = chat;
    this.warn("");
    this.show();
    this.toEnd();
    this.keep();
    this.listChats();
    this.input.focus();
  }

  remove(chat) {
    this.chats = this.chats.filter(other => other !== chat);
    if (chat === this.current) this.open(this.chats[0] ?? new Conversation());
    this.keep();
    this.listChats();
    byId("new-chat").focus();
  }

  keep() {
    save("chats", this.chats.filter(chat => chat.leaf !== null));
  }

  listChats() {
    byId("chat-list").replaceChildren(...this.chats.map(chat => this.listed(chat)));
  }

  listed(chat) {
    const current = chat === this.current ? "true" : null;
    const link = { type: "button", class: "chat-link", "aria-current": current, onclick: () => this.open(chat) };
    const remove = { "aria-label": `Delete the chat: ${chat.title}`, hidden: chat.leaf === null };
    return element("li", {},
      element("button", link, chat.title),
      textButton("Delete", () => this.remove(chat), remove));
  }

  // ---- the next request as a shell command ----

  curl() {
    if (!this.valid()) return "";
    const next = userMessage(this.input.value.trim() || EXAMPLES[0], this.pictures.urls);
    const messages = [...this.current.messages(this.fields.system, this.current.path().at(-1)), message(next)];
    return curl(ROUTE, { ...this.body(null), messages });
  }
}
