// store.js -- conversations in this browser. Where storage is full or forbidden the page goes on without.
//
// Kept ones are in localStorage. The tab remembers which one is open (sessionStorage), so that it is there again after a reload;
// one that is not kept is with the tab itself, and goes with it.
import { Conversation } from "./tree.js";

const index_name = "braid.chats", prefix = "braid.chat.", open_name = "braid.open", tab_name = "braid.tab";
let enabled = true;

export function set_enabled(value) {
  enabled = value;
}

export function list() {
  try {
    const out = JSON.parse(localStorage.getItem(index_name) ?? "[]");
    return Array.isArray(out) ? out.filter((entry) => typeof entry?.id === "string") : [];
  } catch {
    return [];
  }
}

function write_index(entries) {
  localStorage.setItem(index_name, JSON.stringify(entries));
}

// `chat` is the one that is open in this tab.
export function set_open(chat) {
  try {
    sessionStorage.removeItem(tab_name);
    sessionStorage.setItem(open_name, chat.id);
    if (!enabled && chat.root.children.length > 0) sessionStorage.setItem(tab_name, JSON.stringify(chat.save()));
  } catch { /* a reload begins a new one */ }
}

// The one that was open before a reload, or null.
export function load_open() {
  try {
    const id = sessionStorage.getItem(open_name), tab = sessionStorage.getItem(tab_name);
    return tab ? Conversation.load(JSON.parse(tab)) : id ? load(id) : null;
  } catch {
    return null;
  }
}

// The newest first; when there is no more room the oldest go.
export function save(chat) {
  if (!enabled || chat.root.children.length === 0) return;
  const text = JSON.stringify(chat.save());
  let entries = [{ id: chat.id, title: chat.title(), at: Date.now() }, ...list().filter((entry) => entry.id !== chat.id)];
  while (entries.length > 0) {
    try {
      localStorage.setItem(prefix + chat.id, text);
      write_index(entries);
      return;
    } catch {
      const oldest = entries.pop();
      if (oldest.id === chat.id) return;  // larger than all there is
      try { localStorage.removeItem(prefix + oldest.id); } catch { return; }
    }
  }
}

export function load(id) {
  try {
    return Conversation.load(JSON.parse(localStorage.getItem(prefix + id)));
  } catch {
    return null;
  }
}

export function remove(id) {
  try {
    localStorage.removeItem(prefix + id);
    write_index(list().filter((entry) => entry.id !== id));
  } catch { /* nothing is kept then */ }
}

export function remove_all() {
  for (const entry of list()) remove(entry.id);
}
