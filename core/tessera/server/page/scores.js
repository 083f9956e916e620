// How scores of texts look: a table of all pairs, and lists with a bar beside each number.

import { element } from "./dom.js";

const FULL = 1; // the score that fills a bar; more fills it too where the best score is above it

// The similarity of each two texts, as a table colored from the lowest to the highest. values: [[number]], symmetric.
export function heatMap(texts, values) {
  const pairs = values.flatMap((row, index) => row.slice(index + 1));
  const low = Math.min(...pairs), high = Math.max(...pairs);
  const level = value => high > low ? (value - low) / (high - low) : 0;
  const cell = (value, row, column) => row === column
    ? element("td", { class: "same" }, score(value))
    : colored(element("td", {}, score(value)), level(value));
  const head = element("tr", {}, element("td"), ...texts.map((_, index) => element("th", { scope: "col" }, index + 1)));
  const rows = texts.map((text, row) => element("tr", {},
    element("th", { scope: "row", title: text }, element("span", { class: "position" }, row + 1), text),
    ...values[row].map((value, column) => cell(value, row, column))));
  return element("section", { class: "card" },
    element("div", { class: "card-head" }, element("h3", {}, "Similarity of each pair"),
      element("p", { class: "legend" }, score(low), element("span", { class: "ramp", "aria-hidden": "true" }),
        score(high))),
    element("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Similarity of each pair" },
      element("table", { class: "heat" }, element("caption", { class: "unseen" }, "Cosines of the texts' vectors"),
        element("thead", {}, head), element("tbody", {}, ...rows))));
}

// Texts with their scores, the best first. rows: [[text, score]].
export function ranking(title, rows) {
  return element("section", { class: "card" }, element("h3", {}, title), scored("ol", rows));
}

// Texts, each with scores of its labels. rows: [[text, [[label, score]]]].
export function labelling(rows) {
  return element("section", { class: "card" }, element("h3", {}, "The likeliest labels of each text"),
    ...rows.map(([text, labels]) => element("div", { class: "labelled" }, element("p", {}, text), scored("ul", labels))));
}

function scored(tag, rows) {
  const most = Math.max(FULL, ...rows.map(([, value]) => value));
  return element(tag, { class: "scored" }, ...rows.map(([text, value]) => element("li", {},
    element("span", { class: "score" }, score(value)),
    element("meter", { min: 0, max: most, value: Math.max(0, value), "aria-hidden": "true" }),
    element("span", { class: "text" }, text))));
}

// The page's policy forbids attributes with style, but not properties.
function colored(cell, level) {
  cell.style.setProperty("--level", `${(100 * level).toFixed(0)}%`);
  return cell;
}

function score(value) {
  return value.toFixed(2).replace(/^-0\.00$/, "0.00").replace("-", "\u2212");
}
