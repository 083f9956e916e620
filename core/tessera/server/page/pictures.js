// The pictures that the next message shows: chosen, pasted or dropped, and kept as data URLs.

import { announce, byId, element, icon } from "./dom.js";

const MOST_BYTES = 20 * 2 ** 20; // as servers take it
const MOST_PICTURES = 16;

export class Pictures {
  // warn: shows a problem.
  constructor(warn) {
    this.warn = warn;
    this.urls = [];
    this.offered = false;
    this.list = byId("pictures");
    this.chooser = byId("picture-file");
    byId("attach").addEventListener("click", () => this.chooser.click());
    this.chooser.addEventListener("change", async () => {
      await this.add([...this.chooser.files]);
      this.chooser.value = ""; // so that the same file can be chosen again
      byId("message").focus();
    });
    byId("message").addEventListener("paste", event => this.receive(event, event.clipboardData));
    const zone = byId("conversation");
    zone.addEventListener("dragover", event => {
      if (this.offered && event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    zone.addEventListener("drop", event => this.receive(event, event.dataTransfer));
  }

  // Whether the model takes pictures.
  offer(offered) {
    this.offered = offered;
    byId("attach").hidden = !offered;
    if (!offered) this.clear();
  }

  clear() {
    this.urls = [];
    this.show();
  }

  // The pictures, which the message takes along.
  take() {
    const { urls } = this;
    this.clear();
    return urls;
  }

  receive(event, transfer) {
    const files = [...transfer.files].filter(file => file.type.startsWith("image/"));
    if (!this.offered || !files.length) return;
    event.preventDefault();
    this.add(files);
  }

  async add(files) {
    this.warn("");
    for (const file of files) {
      if (this.urls.length === MOST_PICTURES) {
        this.warn(`A message shows at most ${MOST_PICTURES} pictures.`);
      } else if (file.size > MOST_BYTES) {
        this.warn(`${file.name} has more than ${MOST_BYTES / 2 ** 20} MiB.`);
      } else {
        this.urls.push(await dataUrl(file));
        announce("Picture added.");
      }
    }
    this.show();
  }

  remove(index) {
    this.urls.splice(index, 1);
    this.show();
    announce("Picture removed.");
    (this.list.querySelectorAll("button")[Math.min(index, this.urls.length - 1)] ?? byId("message")).focus();
  }

  show() {
    this.list.hidden = !this.urls.length;
    this.list.replaceChildren(...this.urls.map((url, index) => element("li", {},
      picture(url, `Picture ${index + 1}`),
      element("button", {
        type: "button", class: "icon-button", "aria-label": `Remove picture ${index + 1}`,
        onclick: () => this.remove(index),
      }, icon("close")))));
  }
}

export function picture(url, alt) {
  return element("img", { class: "picture", src: url, alt });
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
