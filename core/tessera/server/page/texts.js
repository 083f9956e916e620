// Texts and what a model that answers with numbers makes of them: a form, and below it the answer.

import { ApiError, forgetKey, requestJson } from "./api.js";
import { curl } from "./curl.js";
import { announce, copyButton, element, textButton } from "./dom.js";
import { kindOf } from "./kinds.js";
import { heatMap, labelling, ranking } from "./scores.js";
import { cosines } from "./similarity.js";
import { load, save } from "./storage.js";

const MOST_TEXTS = 40; // of which a table of all pairs can still be read

const MOST_LABELS = 5; // that are shown of each text

// A field that no request can be made of. control: where it is.
class InputError extends Error {
  constructor(control, message) {
    super(message);
    this.control = control;
  }
}

export class Texts {
  constructor(root) {
    this.model = null; // of GET /v1/models
    this.kind = null;
    this.abort = null; // of the requests that are being answered
    this.build(root);
  }

  build(root) {
    this.title = element("h2");
    this.about = element("p", { class: "muted about" });
    this.query = element("input", { id: "query", autocomplete: "off" });
    this.queryLabel = element("label", { for: "query" });
    this.queryField = element("div", { class: "field tall" }, this.queryLabel, this.query);
    this.lines = element("textarea", { id: "lines", rows: 6, "aria-describedby": "lines-note" });
    this.problem = element("p", { class: "alert", role: "alert", hidden: true });
    this.button = element("button", { class: "small-button strong" });
    this.form = element("form", { class: "card inputs" },
      this.queryField,
      element("div", { class: "field tall" }, element("label", { for: "lines" }, "Texts"), this.lines,
        element("p", { class: "note", id: "lines-note" }, `One on each line, at most ${MOST_TEXTS}.`)),
      this.problem,
      element("div", { class: "message-actions" }, this.button,
        textButton("Use an example", () => this.useExample()),
        copyButton("Copy as curl", () => this.curl()),
        textButton("Forget the API key", forgetKey, { "data-forgets": "key", hidden: true })));
    this.results = element("div", { class: "grid" });
    root.append(element("div", { class: "sheet" }, this.title, this.about, this.form, this.results));
    this.listen();
    this.fill(load("texts", { query: "", lines: "" }));
  }

  listen() {
    this.form.addEventListener("submit", event => {
      event.preventDefault();
      this.run();
    });
    this.form.addEventListener("input", () => this.keep());
    this.lines.addEventListener("keydown", event => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.run();
    });
  }

  fill({ query, lines }) {
    this.query.value = query;
    this.lines.value = lines;
  }

  keep() {
    save("texts", { query: this.query.value, lines: this.lines.value });
  }

  // model: one that does more than generate.
  describe(model) {
    if (this.model?.id !== model.id) this.clear();
    this.model = model;
    this.kind = kindOf(model);
    this.title.textContent = this.kind.title;
    this.about.textContent = this.kind.about;
    this.form.hidden = !this.kind.button;
    this.button.textContent = this.kind.button ?? "";
    this.queryField.hidden = this.kind.query === "none";
    this.queryLabel.textContent = this.kind.query === "needed" ? "Query" : "Query (optional)";
  }

  clear() {
    this.abort?.abort();
    this.warn("");
    this.results.replaceChildren();
  }

  warn(text) {
    this.problem.textContent = text;
    this.problem.hidden = !text;
  }

  useExample() {
    const [query, texts] = this.kind.example;
    this.fill({ query, lines: texts.join("\n") });
    this.keep();
    this.run();
  }

  // Sends what is in the form and shows the answers, instead of those that are still to come.
  async run() {
    this.clear();
    const abort = new AbortController();
    this.abort = abort;
    try {
      const questions = this.questions();
      this.results.replaceChildren(element("p", { class: "muted pulse" }, "Computing\u2026"));
      const ask = async ({ route, body, view }) => view(await requestJson(route, { body, signal: abort.signal }));
      this.results.replaceChildren(...await Promise.all(questions.map(ask)));
      this.results.firstElementChild.scrollIntoView({ block: "nearest" });
      announce("The answer is below the form.");
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof ApiError || error instanceof InputError)) throw error;
      this.clear();
      this.warn(error.message);
      error.control?.focus();
    }
  }

  // The requests that the form asks for: { route, body, view }, where view() makes an element of the answer. Throws
  // InputError.
  questions() {
    const { texts, query } = this.entered(), model = this.model.id, { compares } = this.kind;
    const questions = [];
    if (query) {
      questions.push({
        route: "rerank",
        body: { model, query, documents: texts, return_documents: false },
        view: ({ results }) => ranking("Best for the query first", results.map(one => [texts[one.index], one.relevance_score])),
      });
    }
    if (compares && texts.length > 1) {
      questions.push({
        route: "v1/embeddings",
        body: { model, input: texts },
        view: ({ data }) => heatMap(texts, cosines(data.map(one => one.embedding))),
      });
    }
    if (!compares && !query) {
      questions.push({
        route: "classify",
        body: { model, input: texts },
        view: ({ data }) => this.classes(texts, data),
      });
    }
    return questions;
  }

  // What stands in the form. Throws InputError.
  entered() {
    const texts = this.lines.value.split("\n").map(line => line.trim()).filter(Boolean);
    const query = this.kind.query === "none" ? "" : this.query.value.trim();
    if (this.kind.query === "needed" && !query) throw new InputError(this.query, "Write a query.");
    if (!texts.length) throw new InputError(this.lines, "Write some texts, one on each line.");
    if (this.kind.compares && !query && texts.length < 2) {
      throw new InputError(this.lines, "Write a second text to compare this one with, or a query.");
    }
    if (texts.length > MOST_TEXTS) {
      throw new InputError(this.lines, `These are ${texts.length} texts; write at most ${MOST_TEXTS}.`);
    }
    return { texts, query };
  }

  // data: of POST /classify. A single label has a score for each text, and nothing to choose.
  classes(texts, data) {
    if (data[0].num_classes === 1) {
      return ranking("Score of each text", ranked(data.map(one => [texts[one.index], one.probs[0]])));
    }
    const { labels = [] } = this.model;
    const named = ({ probs }) => probs.map((score, index) => [labels[index] ?? `LABEL_${index}`, score]);
    return labelling(data.map(one => [texts[one.index], ranked(named(one)).slice(0, MOST_LABELS)]));
  }

  // The last of the requests as a shell command.
  curl() {
    try {
      const { route, body } = this.questions().at(-1);
      return curl(route, body);
    } catch (error) {
      if (!(error instanceof InputError)) throw error;
      this.warn(error.message);
      error.control.focus();
      return "";
    }
  }
}

// rows: [[text, score]]. The highest score first.
function ranked(rows) {
  return rows.toSorted((one, other) => other[1] - one[1]);
}
