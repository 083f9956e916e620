// Requests to the server that the page came from. Addresses are relative, because a proxy may put it below a prefix.

import { byId } from "./dom.js";
import { forget, load, save } from "./storage.js";

// status: the response's; 0 if there was none.
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const UNREACHABLE = "The server does not answer. Is it still running?";
const CUT = "The connection ended before the answer was complete.";

// A response with status 200. Asks for the API key if the server wants one. Throws ApiError with the server's message.
export async function request(path, { body, signal } = {}) {
  for (;;) {
    const key = load("key", null);
    const headers = key === null ? {} : { Authorization: `Bearer ${inBytes(key)}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const options = { method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store" };
    if (body !== undefined) options.body = JSON.stringify(body);
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      throw error.name === "AbortError" ? error : new ApiError(UNREACHABLE);
    }
    if (response.ok) return response;
    if (response.status !== 401) throw new ApiError(await messageOf(response), response.status);
    await keyAfter(key);
  }
}

export async function requestJson(path, options) {
  return (await request(path, options)).json();
}

// The data of a stream's events, decoded, up to [DONE]. Throws ApiError if an event is an error or the stream breaks
// off.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(error => {
        throw error.name === "AbortError" ? error : new ApiError(CUT);
      });
      if (done) throw new ApiError(CUT);
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue; // comments keep the connection open
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const decoded = decode(data);
        if (decoded.error) throw new ApiError(decoded.error.message ?? "The server failed.");
        yield decoded;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have ended by itself
  }
}

// A header holds bytes: those of UTF-8, as which the server knows its keys.
function inBytes(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

function decode(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent an event that is not JSON.");
  }
}

// What the server says about its engine: "ok", "engine restarting" and so on. It needs no key.
export async function engineState() {
  return (await (await fetch("readyz", { cache: "no-store" })).json()).status;
}

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

// ---- the key --------------------------------------------------------------------------------------------------------

let asking = null;

export function forgetKey() {
  forget("key");
  location.reload();
}

// Resolves when there is a key other than `refused`; requests that are refused together ask once.
function keyAfter(refused) {
  if (load("key", null) !== refused) return Promise.resolve();
  asking ??= ask(refused !== null).finally(() => { asking = null; });
  return asking;
}

function ask(wrong) {
  const dialog = byId("key-dialog"), input = byId("key");
  forget("key");
  byId("key-wrong").hidden = !wrong;
  input.setAttribute("aria-invalid", String(wrong));
  input.value = "";
  const focused = document.activeElement;
  if (!dialog.open) dialog.showModal();
  input.focus();
  return new Promise(resolve => {
    dialog.oncancel = event => event.preventDefault(); // there is nothing to do without a key
    byId("key-form").onsubmit = event => {
      event.preventDefault();
      save("key", input.value.trim());
      input.value = "";
      dialog.close();
      focused?.focus();
      resolve();
    };
  });
}
