// experts.js -- a part of the engine view: experts in host memory, shown only if the model has some.
import { element } from "./dom.js";
import { expert_figures } from "./metrics.js";

const draw = (name, attributes) => {
  const out = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) out.setAttribute(attribute, value);
  return out;
};

export class ExpertsView {
  constructor() {
    this.on_gpu = element("progress", { max: 1, value: 0, "aria-label": "Experts on the GPU" });
    this.on_gpu_text = element("span", {});
    this.hits = element("progress", { max: 1, value: 0, "aria-label": "Chosen experts found on the GPU" });
    this.hits_text = element("span", {});
    this.rate_text = element("span", {});
    this.strip = draw("svg", { class: "strip", preserveAspectRatio: "none", role: "img" });
    this.box = element("div", { hidden: true },
      element("h3", { textContent: "Experts on the GPU" }), element("div", { className: "gauge" }, this.on_gpu, this.on_gpu_text),
      element("h3", { textContent: "Chosen experts found there, by layer" }), element("div", { className: "gauge" }, this.hits, this.hits_text), this.strip,
      element("div", { className: "gauge" }, "Read over the link: ", this.rate_text));
  }

  // `layers` of /experts; null: there are none.
  show(layers) {
    const now = performance.now();
    const figures = expert_figures(layers, this.before, this.seen ? (now - this.seen) / 1000 : 0);
    this.before = layers;
    this.seen = now;
    this.box.hidden = !figures;
    if (!figures) return;
    this.on_gpu.value = figures.on_gpu;
    this.on_gpu_text.textContent = figures.on_gpu_text;
    this.hits.value = figures.hits;
    this.hits_text.textContent = figures.hits_text;
    this.rate_text.textContent = figures.rate_text;
    this.strip.setAttribute("viewBox", `0 0 ${figures.layers.length} 1`);
    this.strip.setAttribute("aria-label", figures.layers_text);
    if (this.strip.children.length !== 2 * figures.layers.length) this.rebuild(figures.layers.length);
    figures.layers.forEach(({ share, text }, i) => {
      const bar = this.strip.children[2 * i], column = this.strip.children[2 * i + 1];
      bar.setAttribute("y", 1 - share);
      bar.setAttribute("height", share);
      column.firstChild.textContent = text;
    });
  }

  // For each layer a bar, and above it a column that says more under the pointer.
  rebuild(count) {
    const parts = [];
    for (let i = 0; i < count; ++i) {
      const column = draw("rect", { class: "column", x: i, y: 0, width: 1, height: 1 });
      column.append(draw("title", {}));
      parts.push(draw("rect", { class: "bar", x: i + 0.1, y: 1, width: 0.8, height: 0 }), column);
    }
    this.strip.replaceChildren(...parts);
  }
}
