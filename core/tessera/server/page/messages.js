// How the messages of a chat look: what the user wrote, an answer as it grows, the results of tools.

import { parts } from "./conversation.js";
import { copyButton, element, icon, sends, textButton } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { picture } from "./pictures.js";

const ENDINGS = {
  length: "The answer ended at its limit of tokens.",
  stopped: "You stopped this answer.",
  abort: "The server stopped this answer.",
  content_filter: "The answer was cut off by a filter.",
};

// actions: { edit(node, text), regenerate(node), show(node), versions(node), giveResults(node, results), openCalls() }.
export function messageView(node, actions) {
  if (node.role === "user") return new UserView(node, actions);
  return node.role === "tool" ? new ResultView(node) : new AnswerView(node, actions);
}

class UserView {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.text = element("div", { class: "bubble" }, node.content);
    this.tools = element("div", { class: "message-actions" });
    const pictures = (node.pictures ?? []).map((url, index) => picture(url, `Picture ${index + 1}`));
    this.root = element("article", { class: "message user" }, element("h2", { class: "unseen" }, "You"),
      pictures.length ? element("div", { class: "pictures" }, ...pictures) : null, this.text, this.tools);
    this.text.hidden = !node.content.trim();
    this.update();
  }

  update() {
    this.tools.replaceChildren(
      copyButton("Copy", () => this.node.content, { "aria-label": "Copy your message" }),
      textButton("Edit", () => this.edit(), { "aria-label": "Edit your message" }),
      ...versionSwitch(this.node, this.actions));
  }

  edit() {
    const rows = Math.min(12, this.node.content.split("\n").length + 1);
    const area = element("textarea", { "aria-label": "Your message", rows });
    area.value = this.node.content;
    const end = () => {
      form.replaceWith(this.text);
      this.tools.hidden = false;
      this.tools.querySelector("[aria-label='Edit your message']").focus();
    };
    const send = event => {
      event.preventDefault();
      if (!area.value.trim()) return;
      end();
      this.actions.edit(this.node, area.value);
    };
    const form = element("form", { class: "edit", onsubmit: send }, area, element("div", { class: "message-actions" },
      element("button", { class: "small-button strong" }, "Send"),
      element("button", { type: "button", class: "small-button", onclick: end }, "Cancel")));
    area.addEventListener("keydown", event => {
      if (event.key === "Escape") end();
      if (sends(event)) send(event);
    });
    this.text.replaceWith(form);
    this.tools.hidden = true;
    area.focus();
  }
}

class ResultView {
  constructor(node) {
    this.node = node;
    this.root = element("article", { class: "message tool" }, element("h2", { class: "unseen" }, "Result of a tool"),
      fold("Result", element("pre", { tabindex: "0", role: "group", "aria-label": "Result of a tool" }, node.content)));
  }

  update() {}
}

class AnswerView {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.head = element("h2", { class: "speaker" }, node.model ?? "Assistant");
    this.thoughts = element("div", { class: "markdown quiet" });
    this.thinking = element("span");
    this.reasoning = element("details", { class: "fold" }, element("summary", {}, this.thinking), this.thoughts);
    this.body = element("div", { class: "markdown" });
    this.calls = element("div", { class: "calls" });
    this.wait = element("p", { class: "wait", "aria-hidden": "true" }, ...[1, 2, 3].map(() => element("span")));
    this.problem = element("p", { class: "alert", role: "alert" });
    this.note = element("p", { class: "note" });
    this.tools = element("div", { class: "message-actions" });
    this.results = element("div");
    this.root = element("article", { class: "message assistant" }, this.head, this.reasoning, this.body, this.calls,
      this.wait, this.problem, this.note, this.tools, this.results);
    this.markdown = new MarkdownView(this.body);
    this.thoughtsMarkdown = new MarkdownView(this.thoughts);
    this.folds = [];
    this.update();
  }

  // growing: while the answer is being generated.
  update(growing = false) {
    const { node } = this;
    const { reasoning, content } = parts(node);
    const begun = content || node.calls?.length;
    this.reasoning.hidden = !reasoning;
    this.thinking.textContent = growing && !begun ? "Thinking\u2026" : "Reasoning";
    this.thinking.classList.toggle("pulse", growing && !begun);
    this.thoughtsMarkdown.update(reasoning);
    this.markdown.update(content);
    this.updateCalls();
    this.wait.hidden = !growing || Boolean(begun || reasoning);
    this.problem.hidden = !node.error;
    this.problem.textContent = node.error ?? "";
    this.note.hidden = growing || !ENDINGS[node.finish];
    this.note.textContent = ENDINGS[node.finish] ?? "";
    this.root.setAttribute("aria-busy", String(growing));
    this.tools.hidden = growing;
    if (!growing) this.updateActions();
  }

  updateCalls() {
    for (const [index, call] of (this.node.calls ?? []).entries()) {
      if (!this.folds[index]) {
        const name = element("code");
        const text = element("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" });
        this.folds[index] = { name, text };
        this.calls.append(fold(element("span", {}, "Tool call: ", name), text));
      }
      this.folds[index].name.textContent = call.name;
      this.folds[index].text.textContent = readable(call.arguments);
    }
  }

  updateActions() {
    const { node, actions } = this;
    this.tools.replaceChildren(
      copyButton("Copy", () => parts(node).content, { "aria-label": "Copy this answer" }),
      textButton("Regenerate", () => actions.regenerate(node), { "aria-label": "Regenerate this answer" }),
      ...versionSwitch(node, actions),
      element("span", { class: "figures" }, figures(node)));
    const open = node.calls?.length && actions.isLast(node) ? actions.openCalls() : [];
    this.results.replaceChildren(...(open.length ? [this.resultForm(open)] : []));
  }

  resultForm(calls) {
    const areas = calls.map(() => element("textarea", { rows: 3, class: "json", spellcheck: "false" }));
    const send = event => {
      event.preventDefault();
      this.actions.giveResults(calls.map((call, index) => ({ call: call.id, content: areas[index].value })));
    };
    const named = (call, index) => element("label", {},
      element("span", {}, "Result of ", element("code", {}, call.name)), areas[index]);
    return element("form", { class: "edit results", onsubmit: send }, ...calls.map(named),
      element("div", { class: "message-actions" },
        element("button", { class: "small-button strong" }, `Send the result${calls.length === 1 ? "" : "s"}`)));
  }
}

function fold(summary, ...content) {
  return element("details", { class: "fold" }, element("summary", {}, summary), ...content);
}

function versionSwitch(node, actions) {
  const versions = actions.versions(node);
  if (versions.length < 2) return [];
  const at = versions.indexOf(node);
  const step = (name, label, other) => element("button", {
    type: "button", class: "step", "aria-label": label, disabled: !other, onclick: () => actions.show(other),
  }, icon(name));
  return [element("span", { class: "versions", role: "group", "aria-label": "Versions" },
    step("before", "Earlier version", versions[at - 1]),
    element("span", {}, `${at + 1} of ${versions.length}`),
    step("after", "Later version", versions[at + 1]))];
}

function figures(node) {
  const parts = [];
  if (node.tokens) parts.push(`${node.tokens} token${node.tokens === 1 ? "" : "s"}`);
  if (node.rate) parts.push(`${node.rate.toFixed(node.rate < 10 ? 1 : 0)} tokens/s`);
  if (node.first) parts.push(`first after ${node.first.toFixed(2)} s`);
  return parts.join(" \u00b7 ");
}

function readable(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // not whole yet, or not JSON
  }
}
