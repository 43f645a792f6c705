// metrics.js -- reads what /metrics and /slots say. No DOM, no network.

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

// Tokens per second of everybody, from two looks at /slots. A request that is new counts from zero.
export function slots_rate(before, after, seconds) {
  const had = new Map(before.map((slot) => [slot.request_id, slot.n_generated]));
  let tokens = 0;
  for (const slot of after) tokens += Math.max(0, slot.n_generated - (had.get(slot.request_id) ?? 0));
  return seconds > 0 ? tokens / seconds : 0;
}
