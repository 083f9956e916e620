// Blocks of code: colored by a few rules that most languages share, with a button that copies them.

import { copyButton, element } from "./dom.js";

const LONGEST = 30_000; // characters that are colored
const STRING = String.raw`"""[\s\S]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?`;
const NUMBER = String.raw`\b\d[\w.]*`;
const WORD = String.raw`[A-Za-z_]\w*`;
const COMMENTS = {
  hash: String.raw`#[^\n]*`,
  slash: String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`,
  dash: String.raw`--[^\n]*`,
};
const LANGUAGES = {
  hash: "bash cmake console dockerfile elixir make makefile perl py python python3 r rb ruby sh shell toml yaml yml",
  slash: "c c++ cpp cs csharp css dart go java javascript js json jsonc jsx kotlin php rs rust scala scss swift ts tsx "
    + "typescript zig",
  dash: "haskell hs lua sql",
};
const KEYWORDS = new Set(`
  abstract and as assert async await begin bool boolean break by case catch char class const constexpr continue create
  def default defer del delete do done double echo elif else elsif end enum esac except export extends extern False
  false fi final finally float fn for foreach from func function global go group guard having if impl implements
  import in inner insert instanceof int interface into is join lambda let limit local long loop match mod module mut
  namespace new nil None none not null of on or order out override package pass private protected pub public raise
  return select self set short signed sizeof static std str string struct super switch table template then this throw
  trait True true try type typedef typename typeof union unless unsafe unsigned until update use using val values var
  virtual void volatile when where while with yield
`.split(/\s+/));

export function codeBlock(code, language) {
  const name = language ? `Code, ${language}` : "Code";
  return element("figure", { class: "code" },
    element("figcaption", {},
      element("span", {}, language || "text"),
      copyButton("Copy", () => code, { "aria-label": "Copy this code" })),
    element("pre", { tabindex: "0", role: "group", "aria-label": name },
      element("code", {}, colored(code, language.toLowerCase()))));
}

function colored(code, language) {
  const family = Object.keys(LANGUAGES).find(one => LANGUAGES[one].split(" ").includes(language));
  if (!family || code.length > LONGEST) return code;
  const made = document.createDocumentFragment();
  const tokens = new RegExp(`(${COMMENTS[family]})|(${STRING})|(${NUMBER})|(${WORD})`, "g");
  let at = 0;
  for (const found of code.matchAll(tokens)) {
    const kind = kindOf(found);
    if (kind === null) continue;
    made.append(code.slice(at, found.index), element("span", { class: kind }, found[0]));
    at = found.index + found[0].length;
  }
  made.append(code.slice(at));
  return made;
}

function kindOf([, comment, string, number, word]) {
  if (comment !== undefined) return "comment";
  if (string !== undefined) return "string";
  if (number !== undefined) return "number";
  const known = KEYWORDS.has(word) || (word === word.toUpperCase() && KEYWORDS.has(word.toLowerCase())); // as in SQL
  return known ? "keyword" : null;
}
