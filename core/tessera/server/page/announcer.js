// Reads a growing answer to screen readers, a sentence at a time. The answer itself is no live region, because each of
// its changes would be read with all that stands before it.

import { element } from "./dom.js";

const KEPT = 3; // parts that stay in the region; the answer itself holds the rest
const END = /[.!?:;][)"'\]]*\s|\n/g;

export class Announcer {
  constructor(region) {
    this.region = region;
  }

  begin() {
    this.read = 0;
    this.region.replaceChildren();
  }

  // text: the whole answer so far.
  update(text) {
    let end = 0;
    END.lastIndex = this.read;
    for (let found = END.exec(text); found; found = END.exec(text)) end = END.lastIndex;
    if (end > this.read) this.say(text.slice(this.read, end));
    this.read = Math.max(this.read, end);
  }

  finish(text, closing) {
    this.say(`${text.slice(this.read)} ${closing}`);
    this.read = text.length;
  }

  say(text) {
    if (!text.trim()) return;
    this.region.append(element("p", {}, text.trim()));
    while (this.region.children.length > KEPT) this.region.firstElementChild.remove();
  }
}
