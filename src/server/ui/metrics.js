// metrics.js -- reads what /metrics says, and numbers for people. No DOM, no network.

// The value of a metric; labels other than the model's are summed over. NaN: there is no such metric.
export function metric(text, name) {
  let sum = NaN;
  for (const line of text.split("\n")) {
    if (!line.startsWith(name)) continue;
    const next = line[name.length];
    if (next !== "{" && next !== " ") continue;
    const value = Number(line.slice(line.lastIndexOf(" ") + 1));
    sum = Number.isNaN(sum) ? value : sum + value;
  }
  return sum;
}

// What a counter moved by per second, between two looks at it. One that went back began anew: another model is in memory.
export function counter_rate(before, after, seconds) {
  return seconds > 0 && after >= before ? (after - before) / seconds : 0;
}

const short = (value, unit, names) => {
  let at = 0;
  while (value >= unit * 0.9995 && at < names.length - 1) {
    value /= unit;
    ++at;
  }
  return `${at > 0 && value < 99.95 ? value.toFixed(1) : Math.round(value)}${names[at]}`;
};

// 16.5 GB; 26.9 B
export const size_text = (bytes) => short(bytes, 1000, [" bytes", " kB", " MB", " GB", " TB"]);
export const count_text = (number) => short(number, 1000, ["", " thousand", " million", " billion"]);

// What became of drafts so far: the share that was accepted, and a line for people.
export function draft_figures(text) {
  const of = (name) => metric(text, `braid_spec_decode_${name}`);
  const rounds = of("num_drafts_total"), drafted = of("num_draft_tokens_total"), accepted = of("num_accepted_tokens_total") || 0;
  if (!(rounds > 0)) return { share: 0, text: "none yet" };
  const out = [`${((100 * accepted) / drafted).toFixed(0)} % of ${drafted.toLocaleString("en")}`, `${(1 + accepted / rounds).toFixed(1)} tokens a round`];
  const lost = of("lost_seconds"), size = Math.abs(lost);
  if (size >= 0.001) out.push(`${size < 1 ? `${Math.round(1000 * size)} ms` : `${size.toFixed(1)} s`} ${lost < 0 ? "saved" : "lost"}`);
  if (of("enabled") === 0) out.push("off for now");
  return { share: accepted / drafted, text: out.join(", ") };
}

// Whether the model has experts in host memory, so that /experts has rows.
export const has_experts = (text) => metric(text, "braid_expert_slots") >= 0;

const share_text = (part, whole) => `${((100 * part) / whole).toFixed(0)} %`;

// What /experts says of a model with experts in host memory, and what it said `seconds` ago: shares, lines for people, and the share of choices that
// each layer found on the GPU. Null: there are no such experts. A layer that has chosen none yet has the share 0.
export function expert_figures(layers, before, seconds) {
  if (!layers?.length) return null;
  const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);
  const all = sum(layers, "experts"), on_gpu = sum(layers, "on_gpu"), chosen = sum(layers, "chosen");
  const rate = before?.length === layers.length ? counter_rate(sum(before, "read_bytes"), sum(layers, "read_bytes"), seconds) : 0;
  const of_layer = (row) => (row.chosen > 0 ? row.hits / row.chosen : 0);
  const out = {
    on_gpu: on_gpu / all,
    on_gpu_text: `${share_text(on_gpu, all)} of ${all.toLocaleString("en")}`,
    hits: chosen > 0 ? sum(layers, "hits") / chosen : 0,
    hits_text: chosen > 0 ? `${share_text(sum(layers, "hits"), chosen)}, ${share_text(sum(layers, "computed"), chosen)} computed by the CPU` : "none yet",
    rate_text: `${size_text(rate)} a second`,
    layers: layers.map((row) => ({
      share: of_layer(row),
      text: `Layer ${row.layer}: ${row.on_gpu} of ${row.experts} on the GPU` +
        (row.chosen > 0 ? `, ${share_text(row.hits, row.chosen)} found there, ${share_text(row.computed, row.chosen)} computed by the CPU` : ""),
    })),
  };
  const shares = out.layers.map((layer) => layer.share);
  out.layers_text = `Found on the GPU, by layer: ${share_text(Math.min(...shares), 1)} to ${share_text(Math.max(...shares), 1)}`;
  return out;
}
