// engine.js -- the live view: what the engine does now, for everybody. Asks once a second while somebody looks.
import { button, element } from "./dom.js";
import { ExpertsView } from "./experts.js";
import { counter_rate, draft_figures, has_experts, metric } from "./metrics.js";

const history_points = 60;

export class EngineView {
  constructor(panel, get, models) {
    this.panel = panel;
    this.get = get;  // (path) -> Response, with the key
    this.rates = [];
    this.mine = () => "";
    this.models = models;
    const close = button("Close", "Close (Escape)", () => panel.dispatchEvent(new Event("leave")));
    this.fault = element("p", { className: "error", hidden: true });
    this.tiles = {};
    const tile = (name, label) => {
      this.tiles[name] = element("dd", { textContent: "–" });
      return element("div", {}, element("dt", { textContent: label }), this.tiles[name]);
    };
    this.line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    this.chart = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.chart.setAttribute("viewBox", `0 0 ${history_points - 1} 20`);
    this.chart.setAttribute("preserveAspectRatio", "none");
    this.chart.setAttribute("role", "img");
    this.chart.append(this.line);
    this.blocks = element("progress", { max: 1, value: 0, "aria-label": "Cache blocks in use" });
    this.hits = element("progress", { max: 1, value: 0, "aria-label": "Prompt tokens found in the cache" });
    this.blocks_text = element("span", { textContent: "–" });
    this.hits_text = element("span", { textContent: "–" });
    this.drafts = element("progress", { max: 1, value: 0, "aria-label": "Drafts accepted" });
    this.drafts_text = element("span", { textContent: "–" });
    this.experts = new ExpertsView();
    this.rows = element("tbody");
    panel.append(
      element("div", { className: "head" }, element("h2", { textContent: "Engine" }), close), this.fault,
      element("dl", { className: "tiles" }, tile("running", "sequences"), tile("waiting", "waiting"), tile("speed", "tok/s"), tile("connections", "connections")),
      element("h3", { textContent: "Speed in tok/s, last minute" }), this.chart,
      element("h3", { textContent: "Cache blocks in use" }), element("div", { className: "gauge" }, this.blocks, this.blocks_text),
      element("h3", { textContent: "Prompt tokens found in the cache" }), element("div", { className: "gauge" }, this.hits, this.hits_text),
      element("h3", { textContent: "Drafts accepted" }), element("div", { className: "gauge" }, this.drafts, this.drafts_text),
      this.experts.box,
      element("h3", { textContent: "Models" }), models.list,
      element("h3", { textContent: "Sequences" }),
      element("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Sequences" }, element("table", {},
        element("thead", {}, element("tr", {}, ...["State", "Prompt", "Written", "Age"].map((text) => element("th", { textContent: text, scope: "col" })))), this.rows)));
    setInterval(() => this.look(), 1000);
  }

  async look() {
    if (this.panel.hidden || document.hidden || this.busy) return;
    this.busy = true;
    try {
      const [metrics, slots, props] = await Promise.all([this.get("metrics"), this.get("slots"), this.total ? null : this.get("props"), this.models.look()]);
      for (const response of [metrics, slots]) {
        if (!response.ok) throw new Error(response.status === 401 ? "The engine's figures need an API key (Settings)." : `The server answers ${response.status}.`);
      }
      if (props?.ok) this.total = (await props.json()).kv_cache?.blocks;
      const text = await metrics.text();
      this.show(text, await slots.json());
      const experts = has_experts(text) ? await this.get("experts") : null;
      this.experts.show(experts?.ok ? (await experts.json()).layers : null);
      this.fault.hidden = true;
    } catch (error) {
      this.fault.textContent = error instanceof TypeError ? "The server does not answer." : error.message;
      this.fault.hidden = false;
    }
    this.busy = false;
  }

  show(text, slots) {
    const now = performance.now();
    const generated = metric(text, "braid_engine_generated_tokens_total");
    const rate = counter_rate(this.generated, generated, this.seen ? (now - this.seen) / 1000 : 0);
    this.generated = generated;
    this.seen = now;
    this.rates.push(rate);
    if (this.rates.length > history_points) this.rates.shift();
    const count = (name) => metric(text, name);
    const shown = (value) => (Number.isFinite(value) ? Math.round(value).toLocaleString("en") : "–");
    this.tiles.running.textContent = shown(count("braid_num_requests_running"));
    this.tiles.waiting.textContent = shown(count("braid_num_requests_waiting"));
    this.tiles.speed.textContent = shown(rate);
    this.tiles.connections.textContent = shown(count("braid_http_open_connections"));
    this.draw();
    const used = count("braid_kv_cache_usage_perc");
    this.blocks.value = used || 0;
    this.blocks_text.textContent = this.total ? `${shown(used * this.total)} of ${shown(this.total)}` : `${(100 * used).toFixed(1)} %`;
    const looked = count("braid_prefix_cache_queries_total"), found = count("braid_prefix_cache_hits_total");
    this.hits.value = looked > 0 ? found / looked : 0;
    this.hits_text.textContent = looked > 0 ? `${((100 * found) / looked).toFixed(0)} % of ${shown(looked)}` : "none yet";
    const drafts = draft_figures(text);
    this.drafts.value = drafts.share;
    this.drafts_text.textContent = drafts.text;
    const mine = this.mine();
    const rows = slots.slice(0, 100).map((slot) => element("tr", { className: slot.request_id === mine ? "mine" : "" },
      ...[{ decode: "writes", prefill: "reads", queued: "waits" }[slot.state] ?? slot.state,
        shown(slot.n_prompt), shown(slot.n_generated), `${(slot.age_ms / 1000).toFixed(1)} s`].map((cell) => element("td", { textContent: cell }))));
    if (rows.length === 0) rows.push(element("tr", {}, element("td", { colSpan: 4, className: "soft", textContent: "nothing runs" })));
    this.rows.replaceChildren(...rows);
  }

  draw() {
    const most = Math.max(1, ...this.rates), skip = history_points - this.rates.length;
    this.line.setAttribute("points", this.rates.map((rate, i) => `${i + skip},${(19 - (18 * rate) / most).toFixed(2)}`).join(" "));
    this.chart.setAttribute("aria-label", `Now ${Math.round(this.rates.at(-1))} tok/s, at most ${Math.round(most)}`);
  }
}
