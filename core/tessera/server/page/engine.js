// What the engine is doing, read once a second while it is looked at.

import { engineState, request, requestJson } from "./api.js";
import { HistogramChart, LineChart, number, percent } from "./charts.js";
import { element } from "./dom.js";
import { gained, rate, Reading } from "./metrics.js";

const EVERY_MS = 1000;
const SHOWN_SECONDS = 120;
const SMOOTHED = 3; // readings that a speed is taken over
const LATENCIES = {
  time_to_first_token_seconds: "Time to first token",
  request_time_per_output_token_seconds: "Time per token",
  e2e_request_latency_seconds: "Whole request",
};
const NOTICES = {
  num_preemptions_total: "preemptions",
  engine_restarts_total: "restarts of the engine",
  replayed_requests_total: "requests run again",
  text_worker_restarts_total: "restarts of text workers",
  media_worker_restarts_total: "restarts of media workers",
};
const STATES = { ok: "Serving" };

export class Engine {
  constructor(root, models) {
    this.models = models;
    this.readings = [];
    this.shown = false;
    this.timer = null;
    this.build(root);
    document.addEventListener("visibilitychange", () => this.schedule(0));
  }

  // Begins or ends reading.
  show(shown) {
    this.shown = shown;
    this.schedule(0);
  }

  // At most one reading waits; none does while nobody looks.
  schedule(milliseconds) {
    clearTimeout(this.timer);
    if (this.shown && document.visibilityState === "visible") this.timer = setTimeout(() => this.read(), milliseconds);
  }

  async read() {
    try {
      const [state, metrics] = await Promise.all([engineState(), request("metrics")]);
      this.readings.push(new Reading(await metrics.text(), performance.now() / 1000));
      while (this.readings[0].time < this.readings.at(-1).time - SHOWN_SECONDS - 2) this.readings.shift();
      this.say(STATES[state] ?? state, state === "ok");
      this.update();
    } catch {
      this.say("The server does not answer; trying again.", false);
    } finally {
      this.schedule(EVERY_MS);
    }
  }

  say(text, good) {
    if (this.state.textContent !== text) this.state.textContent = text;
    this.state.classList.toggle("good", good);
  }

  // ---- the page's elements ----

  build(root) {
    this.state = element("p", { class: "state", role: "status" }, "Reading\u2026");
    this.facts = element("p", { class: "muted facts" });
    this.output = new Speed("Tokens generated", "generation_tokens_total");
    this.input = new Speed("Prompt tokens read", "prompt_tokens_total");
    this.tiles = {
      running: new Tile("Running"),
      waiting: new Tile("Waiting"),
      cache: new Tile("KV cache in use", { meter: true }),
      prefix: new Tile("Prefix cache hits", { meter: true }),
      drafts: new Tile("Drafts accepted", { meter: true }),
      done: new Tile("Requests done"),
    };
    this.notices = element("p", { class: "muted", hidden: true });
    this.latencies = Object.entries(LATENCIES).map(([name, title]) => [name, new HistogramChart(title)]);
    this.period = element("select", { id: "period", onchange: () => this.updateLatencies() },
      element("option", { value: "start" }, "since the server began"),
      element("option", { value: "recent" }, "in the last two minutes"));
    root.append(element("div", { class: "sheet" },
      element("div", { class: "sheet-head" }, element("h2", {}, "Engine"), this.state),
      this.facts,
      element("div", { class: "grid two" }, this.output.root, this.input.root),
      element("div", { class: "grid tiles" }, ...Object.values(this.tiles).map(tile => tile.root)),
      this.notices,
      element("div", { class: "sheet-head" }, element("h2", {}, "Latency"),
        element("label", { for: "period", class: "unseen" }, "Latency of requests"), this.period),
      element("div", { class: "grid three" }, ...this.latencies.map(([, chart]) => chart.root))));
  }

  update() {
    const now = this.readings.at(-1), { tiles } = this;
    this.output.update(this.readings);
    this.input.update(this.readings);
    tiles.running.update(number(now.value("num_requests_running")), "requests");
    tiles.waiting.update(number(now.value("num_requests_waiting")), "requests");
    const used = now.value("kv_cache_usage_perc");
    tiles.cache.update(percent(used), `of ${number(cacheTokens(now))} tokens`, used);
    share(tiles.prefix, now.value("prefix_cache_hits_total"), now.value("prefix_cache_queries_total"));
    const drafts = now.value("spec_decode_num_draft_tokens_total");
    tiles.drafts.root.hidden = drafts === 0; // no speculation
    share(tiles.drafts, now.value("spec_decode_num_accepted_tokens_total"), drafts);
    tiles.done.update(number(now.value("request_success_total")), reasons(now));
    this.notices.textContent = notices(now).join(" \u00b7 ");
    this.notices.hidden = !this.notices.textContent;
    this.updateLatencies();
  }

  updateLatencies() {
    const now = this.readings.at(-1), first = this.readings[0];
    for (const [name, chart] of now ? this.latencies : []) {
      const whole = now.histogram(name);
      chart.update(this.period.value === "recent" ? gained(whole, first.histogram(name)) : whole);
    }
  }

  async describe() {
    const { version } = await requestJson("version");
    const [model] = this.models();
    this.facts.textContent = [
      `Tessera ${version}`, model?.id, model && `${number(model.max_model_len)} tokens of context`,
    ].filter(Boolean).join(" \u00b7 ");
  }
}

function cacheTokens(reading) {
  const labels = reading.all("cache_config_info")[0]?.labels ?? {};
  return Number(labels.block_size ?? 0) * Number(labels.num_gpu_blocks ?? 0);
}

function share(tile, part, whole) {
  if (whole) tile.update(percent(part / whole), `of ${number(whole)} tokens`, part / whole);
  else tile.update("\u2013", "none yet");
}

// What ended the requests, without what did not occur.
function reasons(reading) {
  const ended = reading.all("request_success_total").filter(one => one.value);
  return ended.map(one => `${number(one.value)} ${one.labels.finished_reason}`).join(", ") || "none yet";
}

// What does not occur while all is well, since the server began.
function notices(reading) {
  const counted = Object.entries(NOTICES).map(([name, words]) => [words, reading.value(name)]);
  const ops = reading.all("reference_fallbacks_total").map(one => one.labels.op);
  return [
    ...counted.filter(([, count]) => count).map(([words, count]) => `${words}: ${number(count)}`),
    ...(ops.length ? [`on the reference implementation: ${ops.join(", ")}`] : []),
  ];
}

// A speed in tokens per second, and how it was in the last minutes.
class Speed {
  constructor(name, metric) {
    this.metric = metric;
    this.value = element("span", { class: "value" }, "\u2013");
    this.chart = new LineChart(name, "tokens per second", SHOWN_SECONDS);
    this.root = element("section", { class: "card" }, element("h3", {}, name),
      element("p", { class: "figure" }, this.value, element("span", { class: "unit" }, "tokens/s")), this.chart.root);
  }

  update(readings) {
    const before = readings.at(-1 - Math.min(SMOOTHED, readings.length - 1));
    this.value.textContent = number(rate(this.metric, before, readings.at(-1)));
    const speed = (reading, index) => [reading.time, rate(this.metric, readings[index], reading)];
    this.chart.update(readings.slice(1).map(speed));
  }
}

class Tile {
  constructor(name, { meter } = {}) {
    this.value = element("span", { class: "value" }, "\u2013");
    this.note = element("p", { class: "muted" });
    this.meter = meter ? element("meter", { min: 0, max: 1, value: 0, "aria-label": name }) : null;
    this.root = element("section", { class: "card" }, element("h3", {}, name),
      element("p", { class: "figure" }, this.value), this.meter, this.note);
  }

  update(value, note, level = 0) {
    this.value.textContent = value;
    this.note.textContent = note;
    if (this.meter) this.meter.value = level;
  }
}
