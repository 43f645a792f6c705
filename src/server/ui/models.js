// models.js -- which models the server has, which of them is in memory, and the choice among them: the list in the head of
// the page and a part of the engine panel. One model is in memory at a time; asking for another one loads it.
import { button, element, say } from "./dom.js";
import { count_text, size_text } from "./metrics.js";

const words = { loaded: "in memory", loading: "loading …", unloaded: "not loaded", failed: "cannot be loaded" };

export class Models {
  entries = [];
  wanted = null;  // the name that this page is having loaded

  // `ask`(path, body): a Response, with the key. `changed`: another model is in memory.
  constructor(select, ask, changed) {
    this.select = select;
    this.ask = ask;
    this.changed = changed;
    this.list = element("ul", { className: "models" });
    this.rows = new Map();
    select.addEventListener("change", () => this.show());
  }

  state(name) {
    return this.wanted === name ? "loading" : this.entries.find((entry) => entry.name === name)?.state ?? "loaded";
  }

  async look() {
    const response = await this.ask("v1/models");
    if (!response.ok) return;
    const before = this.resident();
    this.entries = (await response.json()).data.map((model) => ({
      name: model.id, state: model.status?.value ?? "loaded", error: model.status?.error ?? "", meta: model.meta ?? {}, context: model.context_length,
    }));
    this.show();
    if (this.resident() !== before) this.changed();
  }

  resident() {
    return this.entries.filter((entry) => entry.state === "loaded").map((entry) => entry.name).join("\n");
  }

  // The model is chosen, and loaded if it is not in memory.
  async use(name) {
    this.select.value = name;
    if (this.state(name) === "loaded" || this.wanted) return this.show();
    this.wanted = name;
    this.show();
    say(`${name} is being loaded`);
    let fault = "";
    try {
      const response = await this.ask("tokenize", { model: name, content: "" });
      if (!response.ok) fault = (await response.json()).error?.message ?? response.statusText;
    } catch {
      fault = "The server does not answer.";
    }
    this.wanted = null;
    await this.look().catch(() => {});
    const entry = this.entries.find((one) => one.name === name);
    if (fault && entry && !entry.error) entry.error = fault;
    this.show();
    say(fault || `${name} is in memory`);
  }

  show() {
    const { select, entries } = this, several = entries.length > 1;
    const chosen = entries.some((entry) => entry.name === select.value) ? select.value
      : (entries.find((entry) => entry.state === "loaded") ?? entries[0])?.name;
    // Anew only where something changed: a list that is open must not close.
    if ([...select.options].map((option) => option.value).join("\n") !== entries.map((entry) => entry.name).join("\n")) {
      select.replaceChildren(...entries.map(({ name }) => element("option", { value: name })));
    }
    entries.forEach(({ name }, i) => {
      const state = this.state(name), text = several && state !== "loaded" ? `${name} (${words[state] ?? state})` : name;
      if (select.options[i].textContent !== text) select.options[i].textContent = text;
    });
    if (chosen !== undefined && select.value !== chosen) select.value = chosen;
    select.disabled = !several;
    for (const name of this.rows.keys()) if (!entries.some((entry) => entry.name === name)) this.rows.delete(name);
    const rows = entries.map((entry) => this.row(entry, chosen));
    if (rows.length !== this.list.children.length || rows.some((row, i) => this.list.children[i] !== row)) this.list.replaceChildren(...rows);
  }

  // One line of the panel. The elements stay, so that a focused button does.
  row(entry, chosen) {
    const { name, meta } = entry, state = this.state(name);
    let row = this.rows.get(name);
    if (!row) {
      const use = button("Use", `Answer with ${name}; it is loaded if it is not in memory`, () => this.use(name));
      use.setAttribute("aria-label", `Use ${name}`);
      row = element("li", {}, element("div", {}, element("strong", { textContent: name }), element("span"), element("span", { className: "fault" })), use);
      this.rows.set(name, row);
    }
    const [title, about, fault] = row.firstChild.children, use = row.lastChild;
    row.dataset.state = state;
    row.setAttribute("aria-current", String(name === chosen));
    title.textContent = name;
    const facts = [words[state] ?? state];
    if (meta.size) facts.push(size_text(meta.size));
    if (state === "loaded") {
      if (meta.n_params) facts.push(`${count_text(meta.n_params)} parameters`);
      if (meta.ftype) facts.push(meta.ftype);
      if (entry.context) facts.push(`${entry.context.toLocaleString("en")} tokens of context`);
    }
    const text = facts.join(" · ");
    if (about.textContent !== text) about.textContent = text;
    fault.textContent = state === "loading" ? "" : entry.error;
    const done = name === chosen && state === "loaded", waits = this.wanted !== null || state === "loading";
    // What has the focus keeps it: it is said to be of no use instead of taken away.
    use.setAttribute("aria-disabled", String(done || waits));
    use.textContent = done ? "In use" : state === "failed" ? "Try again" : "Use";
    use.setAttribute("aria-label", `${use.textContent} ${name}`.replace("In use", "In use:"));
    return row;
  }
}
