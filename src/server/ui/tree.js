// tree.js -- a conversation as a tree of messages. Editing and regenerating add a sibling, so nothing is lost;
// `chosen` says which child of a node is on the path that is shown. No DOM, no network.
//
// A node: {key, role, content, reasoning, calls, id (of a tool result's call), error, note, stats, form ("json": so was asked), children, chosen, parent}.
// What is kept of it is listed in `kept`.

const kept = ["role", "content", "reasoning", "thought_ms", "calls", "id", "name", "error", "note", "stats", "form"];
let last_key = 0;

export class Conversation {
  constructor() {
    this.id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
    this.root = { children: [], chosen: 0 };
  }

  add(parent, message) {
    const node = { key: ++last_key, content: "", ...message, parent, children: [], chosen: 0 };
    parent.chosen = parent.children.push(node) - 1;
    return node;
  }

  path() {
    const out = [];
    for (let node = this.root; node.children.length > 0;) {
      node = node.children[node.chosen];
      out.push(node);
    }
    return out;
  }

  last() {
    return this.path().at(-1) ?? this.root;
  }

  // The version before or after `node` becomes the one that is shown.
  step(node, by) {
    const { parent } = node, count = parent.children.length;
    parent.chosen = (parent.chosen + by + count) % count;
    return parent.children[parent.chosen];
  }

  remove(node) {
    const { parent } = node;
    parent.children.splice(parent.children.indexOf(node), 1);
    parent.chosen = Math.max(0, Math.min(parent.chosen, parent.children.length - 1));
  }

  title() {
    const first = this.path().find((node) => node.role === "user");
    return first ? first.content.trim().replace(/\s+/g, " ").slice(0, 80) : "";
  }

  // A new conversation with the messages up to `node`, and no other versions of them.
  branch(node) {
    const out = new Conversation(), line = [];
    for (let at = node; at.parent; at = at.parent) line.unshift(at);
    let parent = out.root;
    for (const from of line) parent = out.add(parent, pick(from));
    return out;
  }

  save() {
    const nodes = [];
    const walk = (node, parent) => {
      node.children.forEach((child) => {
        const at = nodes.push({ ...pick(child), parent, chosen: child.chosen }) - 1;
        walk(child, at);
      });
    };
    walk(this.root, -1);
    return { id: this.id, chosen: this.root.chosen, nodes };
  }

  // What save() gave. Null: it is something else.
  static load(saved) {
    if (typeof saved?.id !== "string" || !Array.isArray(saved.nodes)) return null;
    const out = new Conversation();
    out.id = saved.id;
    const nodes = [];
    for (const from of saved.nodes) {
      const parent = from.parent === -1 ? out.root : nodes[from.parent];
      if (!parent || !["user", "assistant", "tool"].includes(from.role)) return null;
      const node = out.add(parent, pick(from));
      if (typeof node.content !== "string") return null;
      nodes.push(node);
    }
    const choose = (node, chosen) => {
      node.chosen = Number.isInteger(chosen) && chosen >= 0 && chosen < node.children.length ? chosen : 0;
    };
    choose(out.root, saved.chosen);
    saved.nodes.forEach((from, i) => choose(nodes[i], from.chosen));
    return out;
  }
}

function pick(from) {
  const out = {};
  for (const name of kept) if (from[name] !== undefined) out[name] = from[name];
  return out;
}

// The messages of an API request that continues `last`.
export function messages(last, system) {
  const out = [];
  for (let node = last; node.parent; node = node.parent) {
    if (node.role === "assistant" && !node.content && !node.reasoning && !node.calls?.length) continue;  // it failed
    const message = { role: node.role, content: node.content };
    if (node.reasoning) message.reasoning_content = node.reasoning;
    if (node.calls?.length) message.tool_calls = node.calls;
    if (node.role === "tool") message.tool_call_id = node.id;
    out.unshift(message);
  }
  if (system?.trim()) out.unshift({ role: "system", content: system });
  return out;
}
