// Markdown within a line: emphasis, code, links. The result is made of nodes; what is not understood stays text.

import { element } from "./dom.js";

const DEEPEST = 8; // of emphasis within emphasis and links
const LONGEST_LABEL = 400; // characters in the brackets of a link
const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00a0", "#39": "'" };

const ESCAPE = /\\([!-\/:-@[-`{-~])/y;
const TICKS = /`+/y;
const MARKS = /\*{1,3}|_{1,3}|~~/y;
const BREAK = /<br\s*\/?>/iy;
const ANGLED = /<([a-z]+:[^\s<>]*|[^\s<>@]+@[^\s<>@]+)>/iy;
const BARE = /https?:\/\/[^\s<>"`]+/y;
const ENTITY = /&([a-z]{2,4}|#39);/y;
const TARGET = /\(\s{0,3}<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s{1,3}(?:"[^"]*"|'[^']*'))?\s{0,3}\)/y;

export function inline(text, depth = 0) {
  return new Inline(text, depth).nodes();
}

class Inline {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    this.plain = "";
    this.made = document.createDocumentFragment();
    this.absent = new Set(); // marks that nothing from here on closes, so that no search is repeated
  }

  nodes() {
    while (this.at < this.text.length) {
      if (!this.special(this.text[this.at])) this.plain += this.text[this.at++];
    }
    this.flush();
    return this.made;
  }

  // Whether a construct begins here; if so, it is added and passed.
  special(character) {
    switch (character) {
      case "\\": return this.math("\\(", "\\)") || this.math("\\[", "\\]") || this.escape();
      case "$": return this.math("$$", "$$");
      case "`": return this.code();
      case "*": case "_": case "~": return this.emphasis();
      case "!": return this.text[this.at + 1] === "[" && this.link(1);
      case "[": return this.link(0);
      case "<": return this.angled();
      case "h": return this.bare();
      case "&": return this.entity();
      default: return false;
    }
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text);
  }

  add(node, end) {
    this.flush();
    this.made.append(node);
    this.at = end;
    return true;
  }

  flush() {
    if (this.plain) this.made.append(this.plain);
    this.plain = "";
  }

  // Where `mark` is next, from `from` on; -1 if nowhere.
  find(mark, from) {
    if (this.absent.has(mark)) return -1;
    const found = this.text.indexOf(mark, from);
    if (found === -1) this.absent.add(mark);
    return found;
  }

  escape() {
    const found = this.match(ESCAPE);
    if (!found) return false;
    this.plain += found[1];
    this.at += 2;
    return true;
  }

  entity() {
    const found = this.match(ENTITY);
    if (!found || !Object.hasOwn(ENTITIES, found[1])) return false;
    this.plain += ENTITIES[found[1]];
    this.at += found[0].length;
    return true;
  }

  // A formula is shown as it was written.
  math(open, close) {
    if (!this.text.startsWith(open, this.at)) return false;
    const end = this.find(close, this.at + open.length);
    if (end <= this.at + open.length) return false;
    const formula = this.text.slice(this.at + open.length, end).trim();
    return this.add(element("code", { class: "formula" }, formula), end + close.length);
  }

  code() {
    const ticks = this.match(TICKS)[0];
    let end = this.at + ticks.length;
    do {
      end = this.find(ticks, end);
      if (end === -1) return this.asText(ticks);
      TICKS.lastIndex = end;
      const run = TICKS.exec(this.text)[0];
      if (run === ticks) break;
      end += run.length;
    } while (true);
    const code = this.text.slice(this.at + ticks.length, end).replace(/\n/g, " ");
    const padded = code.length > 2 && code.startsWith(" ") && code.endsWith(" ") && code.trim();
    return this.add(element("code", {}, padded ? code.slice(1, -1) : code), end + ticks.length);
  }

  asText(text) {
    this.plain += text;
    this.at += text.length;
    return true;
  }

  emphasis() {
    const mark = this.match(MARKS)?.[0];
    if (!mark) return false;
    const start = this.at + mark.length;
    const inWord = mark[0] === "_" && /\w/.test(this.text[this.at - 1] ?? "");
    const end = /\S/.test(this.text[start] ?? "") && !inWord && this.depth < DEEPEST ? this.closing(mark, start) : -1;
    if (end === -1) return this.asText(mark);
    let node = inline(this.text.slice(start, end), this.depth + 1);
    if (mark === "~~") node = element("del", {}, node);
    if (mark.length !== 1 && mark !== "~~") node = element("strong", {}, node);
    if (mark.length % 2 === 1) node = element("em", {}, node);
    return this.add(node, end + mark.length);
  }

  closing(mark, from) {
    for (let end = from; ;) {
      end = this.find(mark, end);
      if (end === -1) return -1;
      let after = end;
      while (this.text[after] === mark[0]) after++;
      const run = after - end;
      const spaced = /\s/.test(this.text[end - 1]);
      const inWord = mark[0] === "_" && /\w/.test(this.text[after] ?? "");
      if (!spaced && !inWord && end > from && (run === mark.length || run === 3)) return after - mark.length;
      end = after;
    }
  }

  // [label](target), or an image: it is never loaded, so that a model cannot make the browser call another server.
  link(skipped) {
    const open = this.at + skipped;
    const close = this.find("](", open) === -1 ? -1 : this.labelEnd(open);
    if (close === -1 || this.depth >= DEEPEST) return false;
    TARGET.lastIndex = close + 1;
    const target = TARGET.exec(this.text);
    if (!target) return false;
    const label = this.text.slice(open + 1, close);
    const content = skipped ? `Image: ${label || target[1]}` : inline(label, this.depth + 1);
    return this.add(linked(target[1], content), close + 1 + target[0].length);
  }

  labelEnd(open) {
    let nested = 0;
    for (let at = open; at < this.text.length && at - open < LONGEST_LABEL; at++) {
      if (this.text[at] === "\\") at++;
      else if (this.text[at] === "[") nested++;
      else if (this.text[at] === "]" && --nested === 0) return at;
    }
    return -1;
  }

  angled() {
    const found = this.match(BREAK);
    if (found) return this.add(element("br"), this.at + found[0].length);
    const address = this.match(ANGLED);
    if (!address) return false;
    const target = address[1].includes(":") ? address[1] : `mailto:${address[1]}`;
    return this.add(linked(target, address[1]), this.at + address[0].length);
  }

  bare() {
    if (/\w/.test(this.text[this.at - 1] ?? "")) return false;
    const found = this.match(BARE);
    if (!found) return false;
    let address = withoutEnd(found[0], ".,:;!?'*_~]");
    if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
    return this.add(linked(address, address), this.at + address.length);
  }
}

// `text` without the characters of `ending` at its end. A regular expression would try each of them as a start.
export function withoutEnd(text, ending) {
  let end = text.length;
  while (end > 0 && ending.includes(text[end - 1])) end--;
  return text.slice(0, end);
}

// A link, if its address is whole and of a harmless kind; otherwise its text alone.
function linked(target, content) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return element("span", {}, content);
  }
  if (!PROTOCOLS.has(url.protocol)) return element("span", {}, content);
  return element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", title: url.href }, content);
}
