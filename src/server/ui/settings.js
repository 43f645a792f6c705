// settings.js -- the panel of what goes along with every request. Values stay in this browser; the key only until the tab
// is closed.
import { button, element } from "./dom.js";

const fields = [
  { name: "system", label: "System prompt", rows: 4 },
  { name: "thinking", label: "Thinking", choices: [["", "as the model prefers"], ["on", "on"], ["off", "off"], ["low", "little"], ["medium", "some"], ["high", "much"]] },
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: 0.05 },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", min: 0, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.5, max: 2, step: 0.05 },
  { name: "max_tokens", label: "Tokens at most", min: 1, step: 1 },
  { name: "thinking_budget", label: "Thinking at most", min: 0, step: 1 },
  { name: "seed", label: "Seed", min: 0, step: 1, placeholder: "random" },
  { name: "stop", label: "Stop at (one per line)", rows: 2 },
  { name: "format", label: "Answer format", choices: [["", "text"], ["json_object", "a JSON object"], ["json_schema", "JSON by a schema"]] },
  { name: "schema", label: "Schema (JSON)", rows: 6, code: true, when: () => inputs.format.value === "json_schema", fault: (text) => fault_of(() => parse_schema(text)),
    example: ["schema", "A schema with a text, a number and a choice", () => example_schema] },
  { name: "tools", label: "Tools (JSON)", rows: 5, code: true, fault: (text) => fault_of(() => parse_tools(text)),
    example: ["tool", "A tool that tells the weather", () => example_tools] },
];

const example_schema = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" }, sky: { enum: ["clear", "cloudy", "rain"] } },
  required: ["city", "degrees", "sky"],
  additionalProperties: false,
};

const example_tools = [{
  name: "get_weather",
  description: "The weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}];

const inputs = {};
const number = (name) => (inputs[name].value === "" ? undefined : Number(inputs[name].value));

function read(storage, name) {
  try { return storage.getItem("braid." + name) ?? ""; } catch { return ""; }
}
function write(storage, name, value) {
  try { value === "" ? storage.removeItem("braid." + name) : storage.setItem("braid." + name, value); } catch { /* not allowed: for this visit only */ }
}

function input_for(field) {
  if (field.choices) return element("select", {}, ...field.choices.map(([value, text]) => element("option", { value, textContent: text })));
  if (field.rows) return element("textarea", { rows: field.rows, spellcheck: !field.code, className: field.code ? "mono" : "" });
  return element("input", { type: "number", inputMode: "decimal", min: field.min, max: field.max ?? "", step: field.step, placeholder: field.placeholder ?? "default" });
}

export function build_settings(panel, { theme, keep, forget, shortcuts }) {
  const close = button("Close", "Close (Escape)", () => panel.dispatchEvent(new Event("leave")));
  const head = element("div", { className: "head" }, element("h2", { textContent: "Settings" }), close);
  let rows;
  rows = fields.map((field) => {
    const input = inputs[field.name] = input_for(field);
    input.id = "set-" + field.name;
    input.value = read(localStorage, field.name);
    const fault = element("span", { className: "fault", role: "alert" });
    input.onchange = () => {
      write(localStorage, field.name, input.value);
      const bad = field.fault ? field.fault(input.value) : input.validity?.valid === false ? input.validationMessage : "";
      fault.textContent = bad;
      input.setAttribute("aria-invalid", String(Boolean(bad)));
      show_fields();
    };
    const row = element("div", { className: "field" + (field.rows || field.choices ? " wide" : "") },
      element("label", { for: input.id, textContent: field.label }), input, fault);
    if (field.example) {
      row.append(button(`Insert an example ${field.example[0]}`, field.example[1], () => {
        input.value = JSON.stringify(field.example[2](), null, 2);
        input.onchange();
      }));
    }
    return row;
  });
  // Some fields mean something only beside the value of another one.
  function show_fields() {
    fields.forEach((field, i) => { if (rows?.[i] && field.when) rows[i].hidden = !field.when(); });
  }
  show_fields();
  const key = inputs.key = element("input", { type: "password", autocomplete: "off", id: "set-key", value: read(sessionStorage, "key") });
  key.onchange = () => {
    write(sessionStorage, "key", key.value);
    panel.dispatchEvent(new Event("key"));
  };
  const themes = element("select", { id: "set-theme" }, ...[["", "as the system"], ["light", "light"], ["dark", "dark"]]
    .map(([value, text]) => element("option", { value, textContent: text })));
  themes.value = read(localStorage, "theme");
  themes.onchange = () => {
    write(localStorage, "theme", themes.value);
    theme(themes.value);
  };
  theme(themes.value);
  const keeps = element("input", { type: "checkbox", id: "set-keep", checked: read(localStorage, "keep") !== "no" });
  keeps.onchange = () => {
    write(localStorage, "keep", keeps.checked ? "" : "no");
    keep(keeps.checked);
  };
  keep(keeps.checked);
  const defaults = button("All as the server's defaults", "Empties the fields above", () => {
    for (const field of fields) {
      inputs[field.name].value = "";
      inputs[field.name].onchange();
    }
  });
  panel.append(head, ...rows, element("div", { className: "field wide" }, defaults),
    element("h3", { textContent: "This browser" }),
    element("div", { className: "field wide" }, element("label", { for: "set-key", textContent: "API key (until the tab is closed)" }), key),
    element("div", { className: "field wide" }, element("label", { for: "set-theme", textContent: "Colours" }), themes),
    element("div", { className: "field wide check" }, keeps, element("label", { for: "set-keep", textContent: "Keep conversations in this browser" })),
    element("div", { className: "field wide" }, button("Forget all conversations", "Cannot be undone", forget)),
    element("h3", { textContent: "Keys", className: "shortcuts-title" }),
    element("dl", { className: "shortcuts" }, ...shortcuts.flatMap(([keys, what]) => [
      element("dt", {}, ...keys.split("+").flatMap((one, i) => (i ? ["+", element("kbd", { textContent: one })] : [element("kbd", { textContent: one })]))),
      element("dd", { textContent: what })])));
}

// What the server uses where a field is empty.
export function show_defaults(params) {
  for (const [name, value] of Object.entries(params ?? {})) {
    if (inputs[name] && typeof value === "number" && value >= 0) inputs[name].placeholder = `default ${Number(value.toFixed(3))}`;
  }
}

function fault_of(parse) {
  try {
    parse();
    return "";
  } catch (error) {
    return error.message;
  }
}

function parse_schema(text) {
  if (!text.trim()) throw new Error("The answer format needs a schema");
  let json;
  try { json = JSON.parse(text); } catch (error) { throw new Error("The schema is not JSON: " + error.message); }
  if (json === null || typeof json !== "object" || Array.isArray(json)) throw new Error("A schema is a JSON object");
  return json;
}

function parse_tools(text) {
  if (!text.trim()) return undefined;
  let json;
  try { json = JSON.parse(text); } catch (error) { throw new Error("Tools are not JSON: " + error.message); }
  return (Array.isArray(json) ? json : [json]).map((tool) => {
    const definition = tool?.function ?? tool;
    if (typeof definition?.name !== "string") throw new Error("Every tool needs a name");
    return { type: "function", function: definition };
  });
}

// The fields of a request. Throws a sentence if the tools or the schema cannot be read.
export function request_fields() {
  const out = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "thinking_budget", "seed"]) {
    const value = number(name);
    if (value !== undefined) out[name] = value;
  }
  const thinking = inputs.thinking.value;
  if (thinking === "on" || thinking === "off") out.enable_thinking = thinking === "on";
  else if (thinking) out.reasoning_effort = thinking;
  const stop = inputs.stop.value.split("\n").filter(Boolean);
  if (stop.length > 0) out.stop = stop;
  const tools = parse_tools(inputs.tools.value);
  if (tools) out.tools = tools;
  const format = inputs.format.value;
  if (format === "json_schema") out.response_format = { type: format, json_schema: { name: "answer", strict: true, schema: parse_schema(inputs.schema.value) } };
  else if (format) out.response_format = { type: format };
  return out;
}

// "json" if the answer will be JSON.
export const answer_form = () => (inputs.format.value ? "json" : undefined);
export const system_prompt = () => inputs.system.value;
export const api_key = () => inputs.key.value;
export const focus_key = () => inputs.key.focus();
