// scripted.mjs -- stands before the real server and says itself, at its own pace, what a tiny model cannot be made to say:
// long answers, tables, several calls, an end in mid-stream. Everything but chat completions goes through.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import http from "node:http";

const chunk = (delta, more = {}) => ({ choices: [{ index: 0, delta, finish_reason: null }], ...more });

// Pieces of about a token, in the order of a model's text.
const tokens = (text) => text.match(/\s*\S{1,6}|\s+/g) ?? [];

export const markdown = `Sorting takes a list and puts it **in order**. A few things matter:

1. *Stability*: equal keys keep their order
2. Memory: \`O(1)\` or a copy
   - merge sort wants the copy
   - heap sort does not

| name | average | worst |
|---|---:|---:|
| merge sort | n log n | n log n |
| quick sort | n log n | n² |

\`\`\`python
def merge(a: list[int], b: list[int]) -> list[int]:
    out = []
    while a and b:
        out.append(a.pop(0) if a[0] <= b[0] else b.pop(0))  # stable: the left one wins, and this comment is long
    return out + a + b
\`\`\`

> Measure before you choose.

More at [a dictionary](https://example.org/sort) and <img src=x onerror=alert(1)> is only text.`;

export const scripts = {
  markdown: { reasoning: "The question is about sorting.\nA table helps, then code. ".repeat(6), text: markdown, ms: 2 },
  endless: { text: "and on ".repeat(20000), ms: 15 },
  thinking: { reasoning: "Let me think about this. ".repeat(4000), text: "Done.", ms: 15 },
  calls: {
    reasoning: "Two lookups are needed.", text: "Let me look that up.", ms: 2,
    calls: [["get_weather", '{"city": "Paris", "unit": "celsius"}'], ["get_time", '{"zone": "Europe/Paris"}']],
  },
  broken: { text: "This answer will be", ms: 2, end: "cut" },
  fault: { text: "This answer meets", ms: 2, end: "error" },
  short: { text: "It is sunny in Paris, 21 degrees.", ms: 2 },
  // Blocks that are large enough to be read in steps, and quickly.
  table: { text: "A table:\n\n| number | square |\n|---:|---:|\n" + Array.from({ length: 10000 }, (_, i) => `| ${i} | ${i * i} |\n`).join("") + "\nThe end.", ms: 0, piece: 500 },
  listing: { text: "```python\n" + Array.from({ length: 3000 }, (_, i) => `print(${i})\n`).join("") + "```\n\nThe end.", ms: 0, piece: 200 },
  hostile: { text: ["> ".repeat(3000), "- ".repeat(3000), "a" + "`".repeat(20000), "**a ".repeat(2000), "[a](".repeat(2000), "|-".repeat(5000)].join("x\n\n") + "\n\n![p](https://example.org/p.png) <img src=https://example.org/q.png> The end.", ms: 0, piece: 1000 },
  limit: { text: "This is as long as", ms: 2, finish: "length" },
};

async function play(script, write, gone) {
  const wait = () => new Promise((resolve) => setTimeout(resolve, script.ms));
  let count = 0;
  const put = async (delta) => {
    if (gone()) return;
    write(chunk(delta));
    ++count;
    await wait();
  };
  await put({ role: "assistant", content: "" });
  for (const text of tokens(script.reasoning ?? "")) await put({ reasoning_content: text });
  for (const text of script.piece ? script.text.match(new RegExp(`[^]{1,${script.piece}}`, "g")) : tokens(script.text)) {
    if (gone()) return;
    await put({ content: text });
  }
  for (const [index, [name, args]] of (script.calls ?? []).entries()) {
    await put({ tool_calls: [{ index, id: `call_${index}`, type: "function", function: { name, arguments: "" } }] });
    for (const text of tokens(args)) await put({ tool_calls: [{ index, function: { arguments: text } }] });
  }
  write({ choices: [{ index: 0, delta: {}, finish_reason: script.finish ?? (script.calls ? "tool_calls" : "stop") }] });
  write({
    choices: [], timings: { predicted_per_second: 123.4, prompt_per_second: 2345 },
    usage: { prompt_tokens: 1234, completion_tokens: count, total_tokens: 1234 + count, prompt_tokens_details: { cached_tokens: 1000 }, completion_tokens_details: { reasoning_tokens: 0 } },
  });
}

// Hands a request on and its answer back. With `page`, a file, the page is that one, under the policy that braid would give it.
function pass(upstream, page, request, response) {
  const to = http.request(upstream + request.url, { method: request.method, headers: request.headers }, (answer) => {
    if (page && request.url === "/") {
      answer.resume();
      const body = readFileSync(page, "utf8");
      const policy = answer.headers["content-security-policy"].replace(/(script|style)-src [^;]*/g, (all, tag) => {
        const [, text] = new RegExp(`<${tag}>([^]*?)</${tag}>`).exec(body);
        return `${tag}-src 'sha256-${createHash("sha256").update(text).digest("base64")}'`;
      });
      response.writeHead(200, { "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy });
      return response.end(body);
    }
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  to.on("error", () => response.destroy());
  response.on("close", () => to.destroy());
  request.pipe(to);
}

// Which script plays is the first word of the last message that names one; `short` if none does.
async function play_script(seen, request, response) {
  let body = "";
  for await (const part of request) body += part;
  const json = JSON.parse(body);
  seen.requests.push(json);
  const name = json.messages.at(-1).content.split(" ").find((word) => scripts[word]) ?? "short";
  const script = scripts[name];
  let left = false;
  response.on("close", () => {
    if (!response.writableEnded) {
      left = true;
      ++seen.gone;
    }
  });
  response.writeHead(200, { "Content-Type": "text/event-stream", "x-request-id": "req_scripted" });
  const write = (json) => response.write(`data: ${JSON.stringify(json)}\n\n`);
  if (script.end) {
    for (const text of tokens(script.text)) write(chunk({ content: text }));
    if (script.end === "error") write({ error: { message: "the engine has stopped", type: "server_error", param: null, code: "internal_error" } });
    return response.end();
  }
  await play(script, write, () => left);
  if (left) return;
  response.end("data: [DONE]\n\n");
}

export async function startScripted(upstream, { page, script = true } = {}) {
  const seen = { requests: [], gone: 0 };
  const server = http.createServer((request, response) => {
    if (script && request.url === "/v1/chat/completions") play_script(seen, request, response);
    else pass(upstream, page, request, response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`, seen,
    stop: () => new Promise((resolve) => {
      server.closeAllConnections();
      server.close(resolve);
    }),
  };
}
