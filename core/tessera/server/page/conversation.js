// A chat as a tree: an edited message, and an answer that is generated again, stand beside the earlier one.
//
// A node: { id, parent, role, content }; of a message that shows pictures, { pictures }, their data URLs; for an answer, { reasoning, calls, finish, error, model, tokens, first,
// rate }. calls: the tool calls, { index, id, name, arguments }. call: of a tool's result, the id of the call. first:
// seconds to the first token. rate: tokens per second after it.

const THINK = /^\s*<think>([\s\S]*?)(?:<\/think>\s*|$)/;

export class Conversation {
  constructor(stored = {}) {
    this.id = stored.id ?? `${Date.now()}-${Math.floor(Math.random() * 1e9)}`;
    this.nodes = stored.nodes ?? [];
    this.leaf = stored.leaf ?? null;
  }

  get title() {
    const first = this.nodes.find(node => node.role === "user");
    return first?.content.trim().split("\n", 1)[0].slice(0, 80) || "New chat";
  }

  // Adds a node below `parent` (a node, or null at the start) and shows it.
  add(parent, fields) {
    const node = { id: this.nodes.length, parent: parent?.id ?? null, content: "", ...fields };
    this.nodes.push(node);
    this.leaf = node.id;
    return node;
  }

  // The nodes shown, from the first to the leaf.
  path() {
    const path = [];
    for (let id = this.leaf; id !== null; id = this.nodes[id].parent) path.unshift(this.nodes[id]);
    return path;
  }

  parentOf(node) {
    return node.parent === null ? null : this.nodes[node.parent];
  }

  // All versions of a node, the oldest first.
  versions(node) {
    return this.nodes.filter(other => other.parent === node.parent && other.role === node.role);
  }

  // Shows a node and the newest of what follows it.
  show(node) {
    this.leaf = node.id;
    for (const later of this.nodes) if (later.parent === this.leaf) this.leaf = this.lastChild(later.parent);
  }

  lastChild(id) {
    return this.nodes.findLast(node => node.parent === id).id;
  }

  // The calls of the last answer that have no result yet.
  openCalls() {
    const path = this.path();
    const last = path.findLastIndex(node => node.role === "assistant");
    const given = new Set(path.slice(last + 1).map(node => node.call));
    return path.slice(last + 1).some(node => node.role === "user") ? []
      : (path[last]?.calls ?? []).filter(call => !given.has(call.id));
  }

  // The `messages` of a request, up to and with `last`.
  messages(system, last) {
    const path = this.path();
    const nodes = path.slice(0, path.indexOf(last) + 1);
    const sent = nodes.filter(node => node.role !== "assistant" || node.content || node.calls?.length).map(message);
    return system.trim() ? [{ role: "system", content: system }, ...sent] : sent;
  }
}

// What an answer thinks and says. Where the server does not tell them apart, a model's <think> tags do.
export function parts(node) {
  const found = node.reasoning ? null : THINK.exec(node.content);
  if (!found) return { reasoning: node.reasoning ?? "", content: node.content };
  return { reasoning: found[1].trim(), content: node.content.slice(found[0].length) };
}

// A node's fields, of what the user writes and shows.
export function userMessage(content, pictures = []) {
  return { role: "user", content, ...pictures.length ? { pictures } : {} };
}

// A node as a request has it.
export function message(node) {
  if (node.role === "user" && node.pictures) {
    const shown = node.pictures.map(url => ({ type: "image_url", image_url: { url } }));
    const text = node.content.trim() ? [{ type: "text", text: node.content }] : [];
    return { role: "user", content: [...shown, ...text] };
  }
  if (node.role === "user") return { role: "user", content: node.content };
  if (node.role === "tool") return { role: "tool", tool_call_id: node.call, content: node.content };
  const sent = { role: "assistant", content: node.content || null };
  if (node.reasoning) sent.reasoning = node.reasoning;
  if (node.calls?.length) {
    sent.tool_calls = node.calls.map(call => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
  }
  return sent;
}

// Adds what one chunk of a stream brings to an answer. Returns whether it brought something to show.
export function extend(node, chunk) {
  if (chunk.usage) node.tokens = chunk.usage.completion_tokens;
  const choice = chunk.choices?.[0];
  if (!choice) return false;
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning ?? delta.reasoning_content ?? ""; // vLLM's name, and its earlier one
  node.content += delta.content ?? "";
  if (reasoning) node.reasoning = (node.reasoning ?? "") + reasoning;
  for (const part of delta.tool_calls ?? []) extendCall(node.calls ??= [], part);
  if (choice.finish_reason) node.finish = choice.finish_reason;
  return Boolean(delta.content || reasoning || delta.tool_calls?.length);
}

function extendCall(calls, part) {
  const index = part.index ?? 0;
  let call = calls.find(one => one.index === index);
  if (!call) calls.push(call = { index, id: `call-${index}`, name: "", arguments: "" });
  if (part.id) call.id = part.id;
  call.name += part.function?.name ?? "";
  call.arguments += part.function?.arguments ?? "";
}
