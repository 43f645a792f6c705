// stream.js -- a streamed chat completion: bytes to events, events into a message. No DOM, no network.

// Feed it text as it comes; it gives the JSON values of complete `data:` lines. "[DONE]" becomes null.
export class EventReader {
  held = "";

  feed(text) {
    this.held += text;
    const lines = this.held.split("\n");
    this.held = lines.pop();
    const out = [];
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;  // comments (heartbeats), event names, empty lines
      const data = line.slice(5).trim();
      if (data) out.push(data === "[DONE]" ? null : JSON.parse(data));
    }
    return out;
  }
}

// Puts one event into `node`. Throws what the server reports as an error in mid-stream.
export function take(node, event, now) {
  if (event.error) throw new Error(event.error.message ?? "the server reports an error");
  const choice = event.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) {
    node.thinking_since ??= now;
    node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
  }
  if (node.thinking_since !== undefined && node.thought_ms === undefined && (delta.content || delta.tool_calls)) {
    node.thought_ms = now - node.thinking_since;
  }
  node.content += delta.content ?? "";
  for (const part of delta.tool_calls ?? []) {
    node.calls ??= [];
    if (part.id) node.calls[part.index] = { id: part.id, type: "function", function: { name: part.function?.name ?? "", arguments: "" } };
    const call = node.calls[part.index];
    if (call) call.function.arguments += part.function?.arguments ?? "";
  }
  if (delta.content || delta.reasoning_content || delta.tool_calls) {
    node.events = (node.events ?? 0) + 1;
    node.first_ms ??= now;
    node.last_ms = now;
  }
  if (choice?.finish_reason) node.finish = choice.finish_reason;
  if (event.usage) {
    node.stats = {
      prompt: event.usage.prompt_tokens,
      cached: event.usage.prompt_tokens_details?.cached_tokens ?? 0,
      generated: event.usage.completion_tokens,
      reasoning: event.usage.completion_tokens_details?.reasoning_tokens ?? 0,
      prompt_speed: event.timings?.prompt_per_second,
      speed: event.timings?.predicted_per_second,
      drafted: event.timings?.draft_n,
      accepted: event.timings?.draft_n_accepted,
      first_ms: node.first_ms !== undefined ? node.first_ms - node.asked_ms : undefined,
    };
  }
}

const round = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1));

// One line for people: sizes and speed.
export function describe(stats) {
  const out = [`${stats.generated.toLocaleString("en")} tokens`];
  if (stats.speed) out.push(`${round(stats.speed)} tok/s`);
  if (stats.first_ms !== undefined) {
    out.push(`first ${stats.first_ms < 1000 ? Math.round(stats.first_ms) + " ms" : (stats.first_ms / 1000).toFixed(1) + " s"}`);
  }
  if (stats.drafted) out.push(`${stats.accepted.toLocaleString("en")} of ${stats.drafted.toLocaleString("en")} drafts accepted`);
  out.push(`prompt ${stats.prompt.toLocaleString("en")}` + (stats.cached ? ` (${stats.cached.toLocaleString("en")} cached)` : ""));
  return out.join(" · ");
}

// While it runs: events are counted, which are tokens or a little more than one each.
export function describe_running(node, now) {
  if (!node.events) return `${node.waits_for ?? "waiting for the first token"}, ${((now - node.asked_ms) / 1000).toFixed(1)} s`;
  const seconds = (node.last_ms - node.first_ms) / 1000;
  return `${node.events.toLocaleString("en")} tokens` + (seconds > 0.2 ? ` · ${round((node.events - 1) / seconds)} tok/s` : "");
}

export function thought_label(node, running, now) {
  const seconds = (ms) => (ms < 9950 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)) + " s";
  if (node.thought_ms !== undefined) return `Thought for ${seconds(node.thought_ms)}`;
  return running ? `Thinking, ${seconds(now - node.thinking_since)}` : "Thought";
}
