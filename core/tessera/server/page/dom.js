// Makes elements. Text is always text: nothing here parses HTML, and the page's policy forbids it.

const SVG = "http://www.w3.org/2000/svg";

// attributes: true sets an attribute without a value; false and null leave it out; a function listens ("onclick").
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#icon-${name}` }));
}

export function textButton(label, onclick, attributes = {}) {
  return element("button", { type: "button", class: "text-button", onclick, ...attributes }, label);
}

export function byId(id) {
  return document.getElementById(id);
}

// Whether a key pressed in a text means to send it. On a touch screen Enter is the only key for a new line.
export function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches;
}

// Says something once to screen readers, such as "Copied".
export function announce(text) {
  byId("status").textContent = "";
  requestAnimationFrame(() => { byId("status").textContent = text; });
}

// A button that copies what text() returns, and says so.
export function copyButton(label, text, attributes = {}) {
  const button = textButton(label, async () => {
    const copied = await copy(text());
    button.textContent = copied ? "Copied" : "Could not copy";
    announce(button.textContent);
    setTimeout(() => { button.textContent = label; }, 1500);
  }, attributes);
  return button;
}

// navigator.clipboard exists on HTTPS and on this machine only; servers are also used by plain HTTP in a local network.
async function copy(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // Not permitted: try the older way.
  }
  const focused = document.activeElement;
  const area = element("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}
