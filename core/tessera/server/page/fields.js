// The panel of parameters: what a request says beyond its messages. A field left empty is not sent.

import { forgetKey } from "./api.js";
import { byId, copyButton, element, textButton } from "./dom.js";
import { forget, load, save } from "./storage.js";

const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, step: "any" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: "any" },
  { name: "top_k", label: "Top k", min: -1, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1 },
  { name: "seed", label: "Seed", step: 1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any" },
];
const TOOLS_EXAMPLE = `[{"type": "function", "function": {
  "name": "get_weather",
  "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}}}}}]`;
const SCHEMA_EXAMPLE = `{"type": "object",
  "properties": {"answer": {"type": "string"}},
  "required": ["answer"]}`;

// A field whose value no request can have. control: where it is.
export class FieldError extends Error {
  constructor(control, message) {
    super(message);
    this.control = control;
  }
}

export class Fields {
  // curl: returns the shell command of the next request.
  constructor(container, { curl }) {
    this.controls = new Map();
    this.values = load("fields", {});
    this.build(container, curl);
  }

  get system() {
    return this.values.system ?? "";
  }

  build(container, curl) {
    const strict = this.control("strict", element("input", { type: "checkbox", id: "field-strict" }));
    container.append(
      this.area("system", "System prompt", { rows: 3, placeholder: "You are a helpful assistant." }),
      element("fieldset", { class: "numbers" }, element("legend", {}, "Sampling"),
        ...NUMBERS.map(number => this.number(number)),
        element("p", { class: "note" }, "An empty field leaves the choice to the server.")),
      this.area("tools", "Tools", { rows: 5, placeholder: TOOLS_EXAMPLE, json: true }),
      this.area("schema", "JSON schema of the answer", { rows: 5, placeholder: SCHEMA_EXAMPLE, json: true }),
      element("p", { class: "check" }, strict, element("label", { for: "field-strict" }, "Strict")),
      element("div", { class: "panel-actions" },
        textButton("Reset", () => this.reset()),
        copyButton("Copy as curl", curl),
        textButton("Forget the API key", forgetKey, { "data-forgets": "key", hidden: true })));
  }

  number({ name, label, ...limits }) {
    const id = `field-${name}`;
    const input = element("input", { type: "number", id, placeholder: "default", inputmode: "decimal", ...limits });
    return element("div", { class: "field" }, element("label", { for: id }, label), this.control(name, input));
  }

  area(name, label, { json, ...attributes }) {
    const id = `field-${name}`, about = `problem-${name}`;
    const ofJson = json ? { class: "json", spellcheck: "false", "aria-describedby": about } : {};
    const area = element("textarea", { id, ...ofJson, ...attributes });
    const problem = json ? element("p", { class: "alert", id: about, role: "alert", hidden: true }) : null;
    if (json) area.addEventListener("change", () => this.checked(name));
    return element("div", { class: "field tall" },
      element("label", { for: id }, label), this.control(name, area), problem);
  }

  control(name, control) {
    this.controls.set(name, control);
    this.show(name);
    control.addEventListener("input", () => {
      this.values[name] = control.type === "checkbox" ? control.checked : control.value;
      save("fields", this.values);
    });
    return control;
  }

  show(name) {
    const control = this.controls.get(name);
    if (control.type === "checkbox") control.checked = this.values[name] ?? true;
    else control.value = this.values[name] ?? "";
  }

  reset() {
    this.values = {};
    forget("fields");
    for (const name of this.controls.keys()) this.show(name);
    for (const name of ["tools", "schema"]) this.checked(name);
  }

  // The fields of a request's body. Throws FieldError.
  body() {
    const body = {};
    for (const { name, label } of NUMBERS) {
      const control = this.controls.get(name);
      if (!control.checkValidity()) throw new FieldError(control, `${label}: ${control.validationMessage}`);
      if (control.value !== "") body[name] = control.valueAsNumber;
    }
    const tools = this.json("tools"), schema = this.json("schema");
    if (tools !== null) body.tools = Array.isArray(tools) ? tools : [tools];
    if (schema !== null) {
      const json_schema = { name: "answer", schema, strict: this.controls.get("strict").checked };
      body.response_format = { type: "json_schema", json_schema };
    }
    return body;
  }

  json(name) {
    const problem = this.checked(name);
    if (problem) throw new FieldError(this.controls.get(name), problem);
    const text = this.controls.get(name).value;
    return text.trim() ? JSON.parse(text) : null;
  }

  // Shows what is wrong with a field of JSON and returns it; "" if nothing is.
  checked(name) {
    const control = this.controls.get(name), shown = byId(`problem-${name}`);
    let problem = "";
    try {
      const value = control.value.trim() ? JSON.parse(control.value) : {};
      if (value === null || typeof value !== "object") problem = "This must be a JSON object.";
    } catch (error) {
      problem = `This is not JSON: ${error.message}`;
    }
    shown.textContent = problem;
    shown.hidden = !problem;
    control.setAttribute("aria-invalid", String(Boolean(problem)));
    return problem;
  }
}
