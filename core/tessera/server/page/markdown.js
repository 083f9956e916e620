// Markdown as models write it (paragraphs, headings, lists, quotes, tables, code), as nodes. HTML in it stays text.

import { codeBlock } from "./code.js";
import { element } from "./dom.js";
import { inline, withoutEnd } from "./inline.js";

const DEEPEST = 12; // of lists and quotes within each other; deeper ones stay text
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const MOST_COLUMNS = 64;
const CELL_RULE = /^:?-+:?$/;

// Shows a growing text in a container: blocks that have not changed keep their nodes, and with them the selection.
export class MarkdownView {
  constructor(container) {
    this.container = container;
    this.sources = [];
  }

  update(text) {
    const blocks = blocksOf(text.split("\n"));
    const same = blocks.findIndex((block, index) => block.source !== this.sources[index]);
    const kept = same === -1 ? blocks.length : same;
    while (this.container.children.length > kept) this.container.lastElementChild.remove();
    this.container.append(...blocks.slice(kept).map(block => block.make(0)));
    this.sources = blocks.map(block => block.source);
  }
}

// The blocks of some lines: { source, make }. make(depth) returns the element.
function blocksOf(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const { end, make } = fence(lines, at) ?? heading(lines, at) ?? rule(lines, at) ?? quote(lines, at)
      ?? list(lines, at) ?? table(lines, at) ?? paragraph(lines, at);
    blocks.push({ source: lines.slice(at, end).join("\n"), make });
    at = end;
  }
  return blocks;
}

function nested(lines, depth) {
  if (depth >= DEEPEST) return [element("p", {}, lines.join("\n"))];
  return blocksOf(lines).map(block => block.make(depth));
}

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [, indent, mark, info] = open;
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], mark)) end++;
  const outdented = line => line.startsWith(indent) ? line.slice(indent.length) : line.trimStart();
  const code = lines.slice(at + 1, end).map(outdented);
  if (end === lines.length && code.at(-1) === "") code.pop(); // still being written
  const language = info.trim().split(/\s/)[0].slice(0, 40);
  return { end: Math.min(end + 1, lines.length), make: () => codeBlock(code.join("\n"), language) };
}

function closes(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && text === mark[0].repeat(text.length);
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  let text = lines[at].slice(found[0].length).trim();
  const bare = withoutEnd(text, "#");
  if (bare === bare.trimEnd() + " " || !bare) text = bare.trim();
  const level = found[1].length;
  const tag = `h${Math.min(level + 2, 6)}`; // the first two levels are the page's own
  return { end: at + 1, make: () => element(tag, { class: `level-${level}` }, inline(text)) };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { end: at + 1, make: () => element("hr") } : null;
}

function quote(lines, at) {
  if (!QUOTE.test(lines[at])) return null;
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && (QUOTE.test(lines[end]) || !begins(lines[end]))) end++;
  const inner = lines.slice(at, end).map(line => line.replace(QUOTE, ""));
  return { end, make: depth => element("blockquote", {}, ...nested(inner, depth + 1)) };
}

// Whether a line begins a block other than a paragraph.
function begins(line) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some(pattern => pattern.test(line));
}

function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first || RULE.test(lines[at])) return null;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at, offset = 0;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const marker = RULE.test(line) ? null : ITEM.exec(line);
    if (marker && marker[1].length <= first[1].length + 1 && /\d/.test(marker[2]) === ordered) {
      offset = marker[0].length;
      items.push([line.slice(offset)]);
    } else if (!line.trim() || indentOf(line) > first[1].length + 1 || (lines[end - 1].trim() && !begins(line))) {
      items.at(-1).push(line.slice(Math.min(indentOf(line), offset)));
    } else {
      break;
    }
  }
  const start = ordered && Number.parseInt(first[2], 10) !== 1 ? { start: Number.parseInt(first[2], 10) } : {};
  return { end, make: depth => element(ordered ? "ol" : "ul", start, ...items.map(item => listItem(item, depth))) };
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function listItem(lines, depth) {
  const task = /^\[([ xX])\] /.exec(lines[0]);
  const content = nested(task ? [lines[0].slice(4), ...lines.slice(1)] : lines, depth + 1);
  // A tight item has no paragraph of its own.
  if (content[0]?.tagName === "P" && !content[1]?.matches("p")) content.splice(0, 1, ...content[0].childNodes);
  const done = task && task[1] !== " ";
  const box = task ? element("span", { class: "task" }, done ? "\u2611 " : "\u2610 ") : null;
  return element("li", {}, box, ...content);
}

function table(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return null;
  const heads = cells(lines[at]), rules = cells(lines[at + 1]);
  if (rules.length !== heads.length || heads.length > MOST_COLUMNS) return null;
  if (!rules.every(cell => CELL_RULE.test(cell))) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  const aligned = rules.map(cell => cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left");
  const row = (line, tag) => element("tr", {}, ...aligned.map((align, index) =>
    element(tag, { class: align, scope: tag === "th" ? "col" : null }, inline(line[index] ?? ""))));
  const make = () => element("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    element("table", {},
      element("thead", {}, row(heads, "th")),
      element("tbody", {}, ...lines.slice(at + 2, end).map(line => row(cells(line), "td")))));
  return { end, make };
}

function cells(line) {
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return text.split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll("\\|", "|"));
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines[end])) end++;
  return { end, make: () => element("p", {}, inline(lines.slice(at, end).map(line => line.trim()).join("\n"))) };
}
