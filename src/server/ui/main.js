// main.js -- the page: a conversation, its answers as they come, panels at the sides, keys.
import { $, button, element, grow, say } from "./dom.js";
import { EngineView } from "./engine.js";
import { Models } from "./models.js";
import { answer_form, api_key, build_settings, focus_key, request_fields, show_defaults, system_prompt } from "./settings.js";
import * as store from "./store.js";
import { EventReader, take } from "./stream.js";
import { Conversation, messages } from "./tree.js";
import { Turn } from "./turn.js";

const starters = ["Who are you?", "What can you do?", "Complete this Python function:\n\ndef is_even(n):\n    \"\"\"Return whether n is even.\"\"\""];
const shortcuts = [
  ["Enter", "send"], ["Shift+Enter", "new line"], ["Esc", "stop the answer, close a panel"], ["↑", "in an empty field: edit the last message"],
  ["Alt+N", "new conversation"], ["Alt+R", "regenerate the last answer"], ["Alt+E", "edit the last message"],
  ["Alt+H", "conversations"], ["Alt+L", "engine"], ["Alt+S", "settings"], ["Alt+I", "message field"],
];

let chat = new Conversation();
let running = null;  // {node, chat, controller, request_id}: one answer at a time
let context_tokens = 0;
const turns = new Map();  // of the conversation that is shown, by node

const narrow = matchMedia("(max-width: 60rem)"), touch = matchMedia("(pointer: coarse)");

// ---- The conversation --------------------------------------------------------------------------------------------

const actions = {
  answering: () => running !== null,
  is_running: (node) => running?.node === node,
  step(node, by) {
    const other = chat.step(node, by);
    show();
    save();
    turns.get(other).bar.querySelectorAll(".versions button")[by < 0 ? 0 : 1]?.focus();
  },
  // A changed question is asked; a changed answer is what the conversation goes on from.
  edit(node, text) {
    if (running) return;
    const { role, reasoning, calls, form } = node;
    const changed = chat.add(node.parent, role === "user" ? { role, content: text } : { role, content: text, reasoning, calls, form });
    if (role === "user") return answer(changed);
    save();
    show();
  },
  regenerate(node) {
    if (running) return;
    if (node.error && !node.content && !node.reasoning) chat.remove(node);
    answer(node.parent);
  },
  branch(node) {
    open_chat(chat.branch(node));
    save();
    list_chats();
    say("A conversation of its own");
  },
  results(node, texts) {
    if (running) return;
    let last = node;
    node.calls.forEach((call, i) => { last = chat.add(last, { role: "tool", content: texts[i], id: call.id, name: call.function.name }); });
    answer(last);
  },
};

function show() {
  const path = chat.path(), at = document.activeElement, turn_at = at?.closest?.("article"), title = at?.title;
  for (const node of turns.keys()) if (!path.includes(node)) turns.delete(node);
  const boxes = path.map((node) => {
    if (!turns.has(node)) turns.set(node, new Turn(node, actions));
    const turn = turns.get(node);
    turn.show();
    return turn.box;
  });
  const there = $("turns");
  boxes.forEach((box, i) => { if (there.children[i] !== box) there.insertBefore(box, there.children[i] ?? null); });
  while (there.children.length > boxes.length) there.lastChild.remove();
  $("empty").hidden = path.length > 0;
  const send = $("send");
  send.textContent = running ? "Stop" : "Send";
  send.classList.toggle("stop", running !== null);
  send.title = running ? "Stop the answer (Escape)" : "Send (Enter)";
  document.title = (running ? "… " : "") + (chat.title() || "braid");
  show_context(path);
  // A button that was pressed may be gone: the focus goes to its successor, or to the message field.
  if (document.activeElement !== document.body) return;
  const successor = turn_at?.isConnected && title && [...turn_at.querySelectorAll(".bar button")].find((one) => one.title === title);
  (successor || home()).focus({ preventScroll: true });
}

// Where the focus rests. On a touch screen the message field would open the keyboard.
const home = () => (touch.matches ? $("scroll") : $("input"));

function show_context(path) {
  const stats = path.findLast?.((node) => node.stats)?.stats ?? [...path].reverse().find((node) => node.stats)?.stats;
  const box = $("context");
  box.replaceChildren();
  if (!stats || !context_tokens) return;
  const used = stats.prompt + stats.generated;
  box.append(element("meter", { min: 0, max: context_tokens, high: 0.9 * context_tokens, value: used, "aria-label": "Context in use" }),
    ` ${used.toLocaleString("en")} of ${context_tokens.toLocaleString("en")} tokens of context`);
}

function at_bottom() {
  const main = $("scroll");
  return main.scrollHeight - main.scrollTop - main.clientHeight < 60;
}

function to_bottom() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
  $("down").hidden = true;
}

// Keeps a conversation, and the open one over a reload of the page.
function save(which = chat) {
  store.save(which);
  if (which === chat) store.set_open(chat);
}

function open_chat(next) {
  chat = next;
  store.set_open(chat);
  turns.clear();
  $("turns").replaceChildren();
  show();
  to_bottom();
}

function fresh() {
  open_chat(new Conversation());
  list_chats();
  if (narrow.matches) leave_panels();
  home().focus();
}

// ---- Asking ------------------------------------------------------------------------------------------------------

const headers = () => (api_key() ? { Authorization: "Bearer " + api_key() } : {});
const ask = (path, body) => fetch(path, body === undefined ? { headers: headers() }
  : { method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify(body) });

async function failure(response) {
  const text = await response.text();
  let message = text.slice(0, 500);
  try { message = JSON.parse(text).error.message; } catch { /* not JSON: as it is */ }
  if (response.status === 401) {
    open_panel("settings");
    focus_key();
    return "This server wants an API key (Settings).";
  }
  const wait = response.headers.get("Retry-After");
  return (message || response.statusText) + (response.status === 429 && wait ? ` Try again in ${wait} s.` : "");
}

async function stream(node, parent) {
  const controller = running.controller;
  const body = {
    model: $("model").value || undefined, messages: messages(parent, system_prompt()), stream: true,
    stream_options: { include_usage: true }, ...request_fields(),
  };
  const response = await fetch("v1/chat/completions", {
    method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify(body), signal: controller.signal,
  });
  if (!response.ok) throw new Error(await failure(response));
  running.request_id = response.headers.get("x-request-id");
  const reader = response.body.getReader(), text = new TextDecoder(), events = new EventReader();
  let complete = false;
  for (;;) {
    const { done, value } = await reader.read();
    for (const event of events.feed(text.decode(value, { stream: !done }))) {
      if (event === null) complete = true;
      else take(node, event, performance.now());
    }
    if (done) break;
  }
  if (!complete) throw new Error("The connection ended before the answer did.");
  if (node.finish === "length") node.note = "Cut off: this is as long as the answer may be.";
}

async function answer(parent) {
  const node = chat.add(parent, { role: "assistant", form: answer_form(), asked_ms: performance.now() });
  const mine = running = { node, chat, controller: new AbortController() };
  show();
  to_bottom();
  save();
  say("Answering");
  // One repaint per frame at most, however many tokens come; the frame asks for the next one while the answer runs.
  const paint = () => {
    if (running !== mine) return;
    const turn = turns.get(node);
    if (turn) {
      const low = at_bottom();
      turn.update();
      if (low) to_bottom();
      else $("down").hidden = false;
    }
    requestAnimationFrame(paint);
  };
  requestAnimationFrame(paint);
  // Where the answer has to wait for its model, that is said.
  const name = $("model").value;
  const watch = async () => {
    if (models.entries.length < 2 || node.events || running !== mine) return;
    await models.look().catch(() => {});
    const state = models.state(name);
    node.waits_for = state === "loaded" ? undefined : `${name} is ${state === "loading" ? "being loaded" : "not loaded yet"}`;
    setTimeout(watch, 500);
  };
  watch();
  try {
    await stream(node, parent);
  } catch (error) {
    if (error.name === "AbortError") node.note = "Stopped.";
    else node.error = error instanceof TypeError ? "The server does not answer. Is it running?" : error.message;
  }
  const low = at_bottom();
  running = null;
  if (node.reasoning && node.thought_ms === undefined && node.thinking_since !== undefined) node.thought_ms = performance.now() - node.thinking_since;
  show();
  if (low && chat === mine.chat) to_bottom();
  save(mine.chat);
  list_chats();
  if (models.entries.length > 1) models.look().catch(() => {});
  // Screen readers get the answer once, when it is whole, instead of every token.
  say(node.error ? "Error: " + node.error : node.calls?.length ? "The model calls " + node.calls.map((call) => call.function.name).join(", ")
    : (node.note ? node.note + " " : "") + node.content.slice(0, 2000));
}

function send() {
  if (running) return stop();
  const input = $("input"), text = input.value.trim();
  if (!text) return;
  input.value = "";
  grow(input);
  answer(chat.add(chat.last(), { role: "user", content: text }));
}

function stop() {
  running?.controller.abort();
}

// ---- Panels ------------------------------------------------------------------------------------------------------

const panels = ["history", "engine", "settings"];

function open_panel(name, open = true) {
  const opener = $(name + "-button"), focused = $(name).contains(document.activeElement);
  // One at each side; on a narrow window one at all.
  if (open) for (const other of panels) if (other !== name && (narrow.matches || (other !== "history" && name !== "history"))) set_panel(other, false);
  set_panel(name, open);
  if (open) $(name).querySelector(touch.matches || name === "engine" ? "button" : ":is(input, select, textarea, li button, .head + * button)")?.focus();
  if (open && !$(name).contains(document.activeElement)) $(name).querySelector("button").focus();
  else if (focused) opener.focus();
  if (open && name === "engine") engine.look();
}

function set_panel(name, open) {
  $(name).hidden = !open;
  $(name + "-button").setAttribute("aria-expanded", String(open));
}

function leave_panels() {
  const open = panels.filter((name) => !$(name).hidden);
  for (const name of open) open_panel(name, false);
  return open.length > 0;
}

function list_chats() {
  const box = $("history");
  const focused = document.activeElement?.dataset?.chat;
  const entries = store.list();
  const rows = entries.map((entry) => {
    const open = button(entry.title || "(nothing said)", "Open this conversation", () => {
      const loaded = running?.chat.id === entry.id ? running.chat : store.load(entry.id);
      if (!loaded) return;
      open_chat(loaded);
      list_chats();
      if (narrow.matches) leave_panels();
    }, "open");
    open.dataset.chat = entry.id;
    if (entry.id === chat.id) open.setAttribute("aria-current", "true");
    const drop = button("×", `Delete "${entry.title}"`, () => {
      store.remove(entry.id);
      if (entry.id === chat.id) fresh();
      list_chats();
      box.querySelector("button")?.focus();
    });
    drop.setAttribute("aria-label", drop.title);
    return element("li", {}, open, drop);
  });
  box.replaceChildren(
    element("div", { className: "head" }, element("h2", { textContent: "Conversations" }),
      button("Close", "Close (Escape)", () => open_panel("history", false))),
    rows.length > 0 ? element("ul", {}, ...rows) : element("p", { className: "soft", textContent: "None yet." }));
  if (focused) box.querySelector(`[data-chat="${CSS.escape(focused)}"]`)?.focus();
}

// ---- Around it ---------------------------------------------------------------------------------------------------

async function look_at_model() {
  engine.total = undefined;
  try {
    const props = await ask("props");
    if (props.ok) {
      const { default_generation_settings: defaults } = await props.json();
      context_tokens = defaults?.n_ctx ?? 0;
      show_defaults(defaults?.params);
      show_context(chat.path());
    }
  } catch { /* the first question will say what is wrong */ }
}

const look_at_server = () => models.look().catch(() => {});

const last_of = (role) => chat.path().reverse().find((node) => node.role === role);

function edit_last() {
  const node = last_of("user");
  if (node && !running) turns.get(node).edit();
}

const keys = {
  KeyN: fresh,
  KeyS: () => open_panel("settings", $("settings").hidden),
  KeyL: () => open_panel("engine", $("engine").hidden),
  KeyH: () => open_panel("history", $("history").hidden),
  KeyE: edit_last,
  KeyI: () => $("input").focus(),
  KeyR: () => {
    const node = last_of("assistant");
    if (node) actions.regenerate(node);
  },
};

document.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Escape") {
    // What lies over the page goes first.
    if (narrow.matches && leave_panels()) return;
    if (running) stop();
    else leave_panels();
  } else if (event.altKey && !event.ctrlKey && !event.metaKey && keys[event.code]) {
    event.preventDefault();
    keys[event.code]();
  }
});
$("input").addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey && !event.altKey && !(touch.matches && !event.ctrlKey)) {
    event.preventDefault();
    if (!running) send();
  }
  if (event.key === "ArrowUp" && $("input").value === "" && last_of("user")) {
    event.preventDefault();
    edit_last();
  }
});
$("input").addEventListener("input", () => grow($("input")));
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("scroll").addEventListener("scroll", () => { if (at_bottom()) $("down").hidden = true; }, { passive: true });
$("down").onclick = () => {
  to_bottom();
  $("input").focus();
};
$("fresh").onclick = fresh;
for (const name of panels) {
  $(name + "-button").onclick = () => open_panel(name, $(name).hidden);
  $(name).addEventListener("leave", () => open_panel(name, false));
}

build_settings($("settings"), {
  shortcuts,
  theme: (value) => { document.documentElement.dataset.theme = value; },
  keep: (value) => {
    store.set_enabled(value);
    if (chat.root.children.length > 0) save();
  },
  forget: () => {
    if (!confirm("Forget all conversations that are kept in this browser?")) return;
    store.remove_all();
    fresh();
  },
});
$("settings").addEventListener("key", look_at_server);
const models = new Models($("model"), ask, look_at_model);
const engine = new EngineView($("engine"), ask, models);
engine.mine = () => running?.request_id ?? "";
$("starters").append(...starters.map((text) => button(text, "Ask this", () => {
  $("input").value = text;
  send();
}, "starter")));
// A reload ends an answer where it is.
addEventListener("pagehide", () => {
  if (!running) return;
  running.node.note = "Stopped.";
  save(running.chat);
});
const opened = store.load_open();
if (opened) open_chat(opened);
else show();
list_chats();
look_at_server();
home().focus();
