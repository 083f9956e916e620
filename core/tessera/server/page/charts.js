// Small charts as SVG: a line over time and the bars of a histogram. Their labels are HTML, so that text keeps its
// size.

import { element, svg } from "./dom.js";
import { quantile, total } from "./metrics.js";

const WIDTH = 240, HEIGHT = 64;
const GAP = 2; // between bars

// A line of the last `seconds`. points: [[time, value], ...], the newest last.
export class LineChart {
  constructor(name, unit, seconds) {
    this.name = name;
    this.unit = unit;
    this.seconds = seconds;
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    const grid = svg("path", { class: "grid", d: `M0 ${HEIGHT / 2}H${WIDTH}M0 0.5H${WIDTH}` });
    this.picture = picture(grid, this.area, this.line);
    this.most = element("span");
    this.root = element("div", { class: "chart" }, this.picture,
      axis(element("span", {}, `${seconds / 60} min ago`), this.most, element("span", {}, "now")));
  }

  update(points) {
    const now = points.at(-1)?.[0] ?? 0;
    const most = Math.max(...points.map(point => point[1]), 1e-9);
    const x = time => WIDTH * (1 - (now - time) / this.seconds);
    const y = value => HEIGHT - 1 - (HEIGHT - 3) * value / most;
    const drawn = points.map(([time, value]) => `${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
    const start = points.length > 1 ? x(points[0][0]).toFixed(1) : 0;
    this.line.setAttribute("d", points.length > 1 ? `M${drawn}` : "");
    this.area.setAttribute("d", points.length > 1 ? `M${drawn}L${WIDTH} ${HEIGHT}L${start} ${HEIGHT}Z` : "");
    const highest = most < 0.05 ? "" : `highest ${number(most)}`;
    this.most.textContent = highest;
    const latest = number(points.at(-1)?.[1] ?? 0);
    this.picture.setAttribute("aria-label", `${this.name}: now ${latest} ${this.unit}${highest && `, ${highest}`}`);
  }
}

// A histogram of durations, with its median and 95th percentile in words.
export class HistogramChart {
  constructor(name) {
    this.name = name;
    this.picture = picture();
    this.low = element("span");
    this.high = element("span");
    this.words = element("p", { class: "figures" });
    this.drawn = "";
    this.root = element("section", { class: "card" }, element("h3", {}, name), this.words,
      element("div", { class: "chart" }, this.picture, axis(this.low, this.high)));
  }

  update(histogram) {
    const drawn = histogram.counts.join();
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const count = total(histogram);
    const first = Math.max(0, histogram.counts.findIndex(Boolean) - 1);
    const last = count ? Math.min(histogram.counts.length - 1, histogram.counts.findLastIndex(Boolean) + 1) : 0;
    const shown = count ? histogram.counts.slice(first, last + 1) : [];
    const most = Math.max(...shown, 1), width = WIDTH / Math.max(shown.length, 1);
    const bound = index => duration(histogram.bounds[first + index] ?? 0);
    this.picture.replaceChildren(baseline(), ...shown.map((value, index) => {
      const height = value ? Math.max(2, (HEIGHT - 2) * value / most) : 0;
      return svg("rect", {
        class: "column", x: index * width + GAP / 2, width: Math.max(1, width - GAP), y: HEIGHT - 1 - height, height,
      }, svg("title", {}, `${bound(index - 1)} to ${bound(index)}: ${number(value)}`));
    }));
    this.low.textContent = count ? bound(-1) : "";
    this.high.textContent = count ? bound(shown.length - 1) : "";
    const median = quantile(histogram, 0.5), slow = quantile(histogram, 0.95);
    const words = count ? `median ${duration(median)}, 95% within ${duration(slow)}` : "no requests yet";
    this.words.textContent = words;
    this.picture.setAttribute("aria-label", `${this.name}: ${count ? `${number(count)} values, ` : ""}${words}`);
  }
}

function picture(...children) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, ...children);
}

function axis(...labels) {
  return element("div", { class: "axis", "aria-hidden": "true" }, ...labels);
}

function baseline() {
  return svg("path", { class: "grid", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` });
}

export function number(value) {
  if (value >= 1e6) return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function duration(seconds) {
  if (seconds === Infinity) return "more";
  if (seconds === 0) return "0";
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  return seconds < 120 ? `${number(seconds)} s` : `${number(seconds / 60)} min`;
}

export function percent(share) {
  return `${number(100 * share)}%`;
}
