// turn.js -- one message on the page, and what can be done with it.
import { button, copy_button, element, grow, grow_text } from "./dom.js";
import { render } from "./render.js";
import { describe, describe_running, thought_label } from "./stream.js";

const names = { user: "You", assistant: "Answer", tool: "Result" };

// `actions`: answering() says whether any answer is under way, is_running(node) whether this one; step, edit, regenerate,
// branch, results do what their buttons say.
export class Turn {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    const id = `turn-${node.key}`;
    this.title = element("h2", { id, textContent: node.role === "tool" && node.name ? `Result of ${node.name}` : names[node.role] });
    this.summary = element("summary");
    this.thought = element("div", { className: "text" });
    this.details = element("details", { className: "thought", hidden: true }, this.summary, this.thought);
    this.text = element("div", { className: node.role === "assistant" ? "text markdown" : "text" });
    this.calls = element("div");
    this.note = element("p", { className: "note", hidden: true });
    this.error = element("div", { className: "error", hidden: true });
    this.form = element("div");
    this.bar = element("div", { className: "bar" });
    this.box = element("article", { className: `turn ${node.role}`, "aria-labelledby": id },
      this.title, node.role === "assistant" && this.details, this.text, this.calls, this.note, this.error, this.form, this.bar);
  }

  // Text and numbers, many times a second while the answer grows.
  update() {
    const { node } = this, running = this.actions.is_running(node), now = performance.now();
    this.box.classList.toggle("running", running);
    this.box.setAttribute("aria-busy", String(running));
    if (node.reasoning) {
      this.details.hidden = false;
      this.details.classList.toggle("busy", running && node.thought_ms === undefined);
      this.summary.textContent = thought_label(node, running, now);
      if (this.details.open || !running) grow_text(this.thought, node.reasoning);
      else this.details.ontoggle = () => grow_text(this.thought, node.reasoning);
    }
    if (node.role === "assistant") {
      const text = node.form === "json" && node.content ? "```json\n" + node.content + (running ? "" : "\n```") : node.content;
      render(this.text, text, !running);
    }
    else if (this.text.textContent !== node.content) this.text.textContent = node.content;
    this.text.hidden = !node.content && !running;
    this.show_calls(running);
    if (running) this.speed.textContent = describe_running(node, now);
  }

  // Everything, buttons included.
  show() {
    const { node } = this;
    this.bar.replaceChildren(...this.buttons());
    this.speed = element("span", { className: "speed", textContent: node.stats ? describe(node.stats) : "" });
    this.bar.append(this.speed);
    this.note.hidden = !node.note;
    this.note.textContent = node.note ?? "";
    this.error.hidden = !node.error;
    this.error.replaceChildren();
    if (node.error) {
      this.error.append(element("span", { textContent: node.error }),
        button("Try again", "Ask the same once more", () => this.actions.regenerate(node)));
    }
    const open = node.calls?.length && node.children.length === 0 && !this.actions.is_running(node) && !node.error;
    if (!open) this.form.replaceChildren();
    else if (!this.form.firstChild) this.form.append(this.results_form());
    this.update();
  }

  buttons() {
    const { node, actions } = this, out = [];
    const siblings = node.parent.children;
    if (siblings.length > 1) {
      const at = siblings.indexOf(node) + 1;
      const group = element("span", { className: "versions", role: "group", "aria-label": `Version ${at} of ${siblings.length}` },
        button("‹", "Previous version", () => actions.step(node, -1)),
        element("span", { textContent: `${at}/${siblings.length}` }),
        button("›", "Next version", () => actions.step(node, 1)));
      for (const child of group.querySelectorAll("button")) child.setAttribute("aria-label", child.title);
      out.push(group);
    }
    if (actions.is_running(node)) return out;
    if (node.content) out.push(copy_button("this message", () => node.content));
    if (!actions.answering()) {
      if (node.role !== "tool") out.push(button("Edit", "Change the text as a new version", () => this.edit()));
      if (node.role === "assistant") out.push(button("Regenerate", "Another answer to the same (Alt+R)", () => actions.regenerate(node)));
      out.push(button("Branch", "Go on from here in a conversation of its own", () => actions.branch(node)));
    }
    return out;
  }

  edit() {
    const { node } = this;
    const area = element("textarea", { value: node.content, rows: 2, "aria-label": "Text of the message" });
    const done = () => {
      close();
      if (area.value.trim()) this.actions.edit(node, area.value);
    };
    const close = () => {
      editor.remove();
      this.text.hidden = false;
      this.bar.hidden = false;
    };
    const cancel = () => {
      close();
      this.bar.querySelector("button")?.focus();
    };
    const verb = node.role === "user" ? "Send" : "Save";
    const editor = element("div", { className: "editor" }, area, element("div", { className: "bar" },
      button(verb, `${verb} this version (Ctrl+Enter)`, done, "small main"), button("Cancel", "Leave it as it was (Escape)", cancel)));
    area.oninput = () => grow(area);
    area.onkeydown = (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done();
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      }
    };
    this.text.hidden = true;
    this.bar.hidden = true;
    this.text.after(editor);
    grow(area);
    area.focus();
  }

  show_calls(running) {
    (this.node.calls ?? []).forEach((call, i) => {
      if (!call) return;
      let box = this.calls.children[i];
      if (!box) {
        box = element("section", { className: "call" }, element("h3"), element("pre", { tabIndex: 0, role: "region" }));
        this.calls.append(box);
      }
      const [title, text] = box.children;
      title.textContent = `Calls ${call.function.name}`;
      text.setAttribute("aria-label", `Arguments of ${call.function.name}`);
      text.textContent = running ? call.function.arguments : pretty(call.function.arguments);
    });
  }

  // The page runs no tools: whoever reads the call says what it returns.
  results_form() {
    const { node } = this;
    const areas = node.calls.map((call) => element("textarea", { rows: 2, placeholder: "What the tool returns" }));
    const send = (event) => {
      event.preventDefault();
      this.actions.results(node, areas.map((area) => area.value));
    };
    const form = element("form", { className: "results", onsubmit: send },
      ...areas.map((area, i) => element("label", {}, `Result of ${node.calls[i].function.name}`, area)),
      element("button", { type: "submit", className: "small main", textContent: areas.length > 1 ? "Send results" : "Send result" }));
    form.onkeydown = (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    };
    return form;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
