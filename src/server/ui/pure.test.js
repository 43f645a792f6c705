// The parts of the page that know neither the DOM nor the network. Run: npm test
import assert from "node:assert/strict";
import { test } from "node:test";
import { Growing, parse, spans } from "./markdown.js";
import { count_text, counter_rate, draft_figures, expert_figures, has_experts, metric, size_text } from "./metrics.js";
import { EventReader, describe, take } from "./stream.js";
import { Conversation, messages } from "./tree.js";

const plain = (parts) => parts.map((part) => part.text ?? (part.type === "br" ? "\n" : plain(part.spans))).join("");

test("markdown: inline", () => {
  assert.deepEqual(spans("a **b *c*** `d*` \\*e\\*").map((span) => span.type), ["text", "strong", "text", "code", "text"]);
  assert.equal(plain(spans("snake_case_name and 2*3*4 ** x")), "snake_case_name and 2*3*4 ** x".replaceAll("*3*", "3"));
  assert.deepEqual(spans("snake_case_name"), [{ type: "text", text: "snake_case_name" }]);
  assert.equal(spans("see https://a.b/c_d.").at(1).href, "https://a.b/c_d");
  assert.equal(spans("![x](https://a.b/c.png)")[0].type, "link");
  for (const bad of ["[x](javascript:alert(1))", "[x](data:text/html,1)", "[x](//a.b)", "<https://a>"]) {
    assert.ok(spans(bad).every((span) => span.type !== "link" || /^https:/.test(span.href)), bad);
  }
});

test("markdown: blocks", () => {
  const types = (text) => parse(text).map((block) => block.type);
  assert.deepEqual(types("# t\n\np\nq\n\n- a\n- b\n\n1. c\n\n> d\n\n---\n\n```js\nx\n```"), ["h", "p", "list", "list", "quote", "hr", "code"]);
  assert.deepEqual(types("a | b\n--|--:\n1 | 2\n\nend"), ["table", "p"]);
  const nested = parse("1. a\n   - b\n   - c\n2. d")[0];
  assert.equal(nested.items.length, 2);
  assert.equal(nested.items[0].blocks[1].items.length, 2);
  assert.equal(parse("- [x] done")[0].items[0].checked, true);
  const open = parse("```py\nprint(1)\n\n    x")[0];
  assert.deepEqual([open.language, open.text, open.open], ["py", "print(1)\n\n    x", true]);
  assert.equal(parse("- a\n  ```\n  code\n  ```\n- b")[0].items[0].blocks[1].text, "code");
});

// What stands on the page: the blocks that were final, and the rest.
class Shown {
  blocks = [];
  reader = new Growing();

  update(text, whole) {
    const { kept, blocks, pending } = this.reader.update(text, whole);
    this.blocks = [...this.blocks.slice(0, kept), ...blocks];
    return pending;
  }

  plain() {
    return this.blocks.map(({ begin, final, stop, ...block }) => block);
  }
}
const whole = (text) => parse(text).map(({ begin, ...block }) => block);

test("markdown: hostile text, links and nesting", () => {
  const kinds = (blocks) => JSON.stringify(blocks);
  assert.ok(!/"href"/.test(kinds(parse("[x]: javascript:alert(1)\n\n[x] <javascript:1> ![a](data:image/png;base64,x) [y](vbscript:1) [z](JaVaScRiPt:1)"))));
  assert.equal(parse("<script>1</script> <b>x</b>")[0].spans[0].text, "<script>1</script> <b>x</b>");
  assert.equal(plain(parse("&lt;b&gt; &amp;amp;")[0].spans), "<b> &amp;");
  // A picture is a link with its label as plain text, not a link in a link.
  assert.deepEqual(spans("![a [b](https://c.d)](https://a.b/c.png)"), [{ type: "link", href: "https://a.b/c.png", spans: [{ type: "text", text: "a [b](https://c.d)" }] }]);
  // However deep it is written, the tree is not.
  const deep = (blocks) => 1 + Math.max(0, ...blocks.map((block) => deep(block.blocks ?? (block.items ?? []).flatMap((item) => item.blocks))));
  for (const part of ["> ", "- ", "1. ", "> - "]) {
    const blocks = parse(part.repeat(20000) + "x\n\nThe end.");
    assert.ok(deep(blocks) < 50, part);
    assert.match(kinds(blocks), /x".*The end\./, part);
  }
  const nested = spans("*a ".repeat(5000) + "x" + " b*".repeat(5000) + "**a ".repeat(5000) + "b**".repeat(5000));
  const levels = (list) => 1 + Math.max(0, ...list.map((span) => (span.spans ? levels(span.spans) : 0)));
  assert.ok(levels(nested) > 5 && levels(nested) < 40, String(levels(nested)));
});

test("markdown: text of any form that grows becomes what it is as a whole, at any cut", () => {
  const text = "# T\nx\ny | z\n--|--\n1 | 2\n\n1. *a* `b`\n   - **c**\n\n     d\n2. e\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```x\n1\n\n```\n> q [l](https://x.y)\nlazy\n" +
    "***\nTitle\n===\n- i\n- j\n* k\n\n    indented\n\np\n```\ncut `\n~~~ ``` \n```\nend\n***both*** \n---\n";
  const expected = JSON.stringify(whole(text));
  for (const size of [1, 2, 3, 5, 8, 13, 40]) {
    const shown = new Shown();
    for (let at = 0; at < text.length; at += size) {
      const now = text.slice(0, at + size);
      assert.equal(shown.update(now), "");
      assert.equal(JSON.stringify(shown.plain()), JSON.stringify(whole(now)), `${size} ${at}`);
    }
    shown.update(text, true);
    assert.equal(JSON.stringify(shown.plain()), expected);
  }
  // Another text is begun anew.
  const shown = new Shown();
  shown.update("a\n\nb\n\nc\n\nd\n");
  shown.update("other");
  assert.equal(JSON.stringify(shown.plain()), JSON.stringify(whole("other")));
});

test("markdown: what is read of a long answer in pieces is a small multiple of it", () => {
  const row = "| 12345 | some text | `x` |\n", line = "a line of text that goes on\n", n = 100000;
  const forms = {
    table: "| a | b | c |\n|---|---|---|\n" + row.repeat(3000), code: "```\n" + line.repeat(n / line.length), paragraph: line.repeat(n / line.length),
    paragraphs: (line + "\n").repeat(n / line.length), list: ("- " + line).repeat(n / line.length), fences: "~~~~\n" + "```\n".repeat(n / 4), one_line: "word ".repeat(n / 5),
    quote: ("> " + line).repeat(n / line.length),
  };
  for (const [name, text] of Object.entries(forms)) {
    const shown = new Shown(), pieces = 1000, size = Math.ceil(text.length / pieces);
    for (let at = 0; at < text.length; at += size) shown.update(text.slice(0, at + size));
    shown.update(text, true);
    const most = 24 * text.length + pieces * 16384;
    assert.ok(shown.reader.read_chars <= most, `${name}: ${shown.reader.read_chars} of ${text.length}`);
    if (name === "paragraphs") assert.ok(shown.reader.read_chars < 4 * text.length, "final blocks are read again");
    assert.equal(JSON.stringify(shown.plain()), JSON.stringify(whole(text)), name);
  }
});

test("markdown: hostile text of any length is read", () => {
  for (const part of ["[", "*", "**a ", "_", "`", "> ", "- ", "|", "![](", "[a](", "<", "\\", "~~", "1. ", "***a", "(http://", "`a``", "&", "a@b.c ", "![", "]", "*a_ ", "http://a"]) {
    parse(part.repeat(20000));
    parse((part + "\n").repeat(2000));
  }
  parse("`".repeat(100000));
  parse(Array.from({ length: 600 }, (_, i) => "`".repeat(i + 1) + "x").join(" "));
  parse("-:".repeat(50000) + "\n" + "|-".repeat(50000) + "x\n");  // looks like the line below a table's head
  parse("a|\n" + ": ".repeat(50000) + "-x\n");
  parse("a|\n|" + "-".repeat(20000) + " ".repeat(20000) + "x\n");
});

test("stream: events cut anywhere give the same message", () => {
  const lines = [
    { choices: [{ delta: { role: "assistant", content: "" } }] }, { choices: [{ delta: { reasoning_content: "hm" } }] },
    { choices: [{ delta: { content: "a\n\n" } }] }, { choices: [{ delta: { content: "b" } }] },
    { choices: [{ delta: { tool_calls: [{ index: 0, id: "c", type: "function", function: { name: "f", arguments: "" } }] } }] },
    { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: '{"x":1}' } }] }, finish_reason: "tool_calls" }] },
    { choices: [], usage: { prompt_tokens: 10, completion_tokens: 4, prompt_tokens_details: { cached_tokens: 8 } }, timings: { predicted_per_second: 50 } },
  ];
  const text = ": hello\n\n" + lines.map((line) => `data: ${JSON.stringify(line)}\n\n`).join("") + "data: [DONE]\n\n";
  for (let cut = 0; cut < text.length; cut += 7) {
    const reader = new EventReader(), node = { content: "", asked_ms: 0 };
    const events = [...reader.feed(text.slice(0, cut)), ...reader.feed(text.slice(cut))];
    assert.equal(events.at(-1), null);
    events.slice(0, -1).forEach((event, i) => take(node, event, 100 * i));
    assert.equal(node.content, "a\n\nb");
    assert.equal(node.reasoning, "hm");
    assert.equal(node.thought_ms, 100);
    assert.deepEqual(node.calls, [{ id: "c", type: "function", function: { name: "f", arguments: '{"x":1}' } }]);
    assert.equal(describe(node.stats), "4 tokens · 50.0 tok/s · first 100 ms · prompt 10 (8 cached)");
  }
  const drafted = { content: "", asked_ms: 0 };
  take(drafted, { choices: [], usage: { prompt_tokens: 10, completion_tokens: 40 }, timings: { predicted_per_second: 50, draft_n: 30, draft_n_accepted: 21 } }, 0);
  assert.equal(describe(drafted.stats), "40 tokens · 50.0 tok/s · 21 of 30 drafts accepted · prompt 10");
  assert.throws(() => take({ content: "" }, { error: { message: "no" } }, 0), /no/);
});

test("tree: versions, branches, saving", () => {
  const chat = new Conversation();
  const question = chat.add(chat.root, { role: "user", content: "q" });
  chat.add(question, { role: "assistant", content: "a1" });
  const second = chat.add(question, { role: "assistant", content: "a2", reasoning: "r" });
  chat.add(second, { role: "user", content: "q2" });
  assert.deepEqual(chat.path().map((node) => node.content), ["q", "a2", "q2"]);
  const loaded = Conversation.load(JSON.parse(JSON.stringify(chat.save())));
  assert.deepEqual(loaded.path().map((node) => node.content), ["q", "a2", "q2"]);
  assert.equal(chat.step(second, 1).content, "a1");
  assert.deepEqual(chat.path().map((node) => node.content), ["q", "a1"]);
  assert.deepEqual(chat.branch(second).path().map((node) => node.content), ["q", "a2"]);
  assert.deepEqual(messages(second, "s"), [
    { role: "system", content: "s" }, { role: "user", content: "q" }, { role: "assistant", content: "a2", reasoning_content: "r" }]);
  for (const bad of [null, 1, {}, { id: "x", nodes: [{ parent: 3, role: "user" }] }, { id: "x", nodes: [{ parent: -1, role: "system" }] },
    { id: "x", nodes: [{ parent: -1, role: "user", content: {} }] }]) {
    assert.equal(Conversation.load(bad), null);
  }
});

test("metrics", () => {
  const text = '# HELP a b\na{model_name="x",k="1"} 2\na{model_name="x",k="2"} 3.5\nab{m="a 1"} 7\n';
  assert.equal(metric(text, "a"), 5.5);
  assert.equal(metric(text, "ab"), 7);
  assert.ok(Number.isNaN(metric(text, "b")));
  assert.equal(counter_rate(5, 19, 2), 7);
  assert.equal(counter_rate(19, 5, 2), 0);
  assert.equal(counter_rate(NaN, 5, 2), 0);
  assert.equal(counter_rate(1, 5, 0), 0);
});

test("drafts", () => {
  const name = (what, labels) => `braid_spec_decode_${what}{model_name="m"${labels}}`;
  const text = [name("num_drafts_total", "") + " 10", name("num_draft_tokens_total", ',source="mtp"') + " 30", name("num_accepted_tokens_total", ',source="mtp"') + " 21",
    name("enabled", "") + " 1", name("lost_seconds", "") + " -2.5"].join("\n");
  assert.deepEqual(draft_figures(text), { share: 0.7, text: "70 % of 30, 3.1 tokens a round, 2.5 s saved" });
  assert.deepEqual(draft_figures(text.replace("} 1\n", "} 0\n").replace("-2.5", "0.04")), { share: 0.7, text: "70 % of 30, 3.1 tokens a round, 40 ms lost, off for now" });
  assert.deepEqual(draft_figures(name("num_drafts_total", "") + " 0"), { share: 0, text: "none yet" });
});

test("experts in host memory", () => {
  assert.equal(has_experts('braid_expert_slots{model_name="m",layer="0"} 0\n'), true);
  assert.equal(has_experts('braid_num_requests_running{model_name="m"} 1\n'), false);
  for (const none of [[], null, undefined]) assert.equal(expert_figures(none, null, 1), null);
  const row = (layer, chosen, hits, computed, read_bytes) => ({ layer, experts: 1000, on_gpu: 250, chosen, hits, computed, read_bytes });
  const before = [row(0, 0, 0, 0, 1e9), row(1, 0, 0, 0, 1e9)], now = [row(0, 100, 80, 15, 2e9), row(1, 300, 180, 45, 4e9)];
  const fresh = expert_figures(before, null, 0);
  assert.deepEqual([fresh.on_gpu, fresh.hits, fresh.hits_text, fresh.rate_text], [0.25, 0, "none yet", "0 bytes a second"]);
  assert.deepEqual(fresh.layers[1], { share: 0, text: "Layer 1: 250 of 1000 on the GPU" });
  const busy = expert_figures(now, before, 2);
  assert.deepEqual([busy.on_gpu_text, busy.hits, busy.hits_text, busy.rate_text], ["25 % of 2,000", 0.65, "65 %, 15 % computed by the CPU", "2.0 GB a second"]);
  assert.deepEqual(busy.layers.map((layer) => layer.share), [0.8, 0.6]);
  assert.equal(busy.layers[0].text, "Layer 0: 250 of 1000 on the GPU, 80 % found there, 15 % computed by the CPU");
  assert.equal(busy.layers_text, "Found on the GPU, by layer: 60 % to 80 %");
  // Another model, or the same one loaded again, has counted anew.
  assert.equal(expert_figures(now, before.slice(1), 2).rate_text, "0 bytes a second");
  assert.equal(expert_figures(before, now, 2).rate_text, "0 bytes a second");
});

test("numbers for people", () => {
  assert.deepEqual([0, 999, 1000, 10_485_760, 16_500_000_000, 999_950_000].map(size_text), ["0 bytes", "999 bytes", "1.0 kB", "10.5 MB", "16.5 GB", "1.0 GB"]);
  assert.deepEqual([950, 9_800_000, 26_895_998_464, 397_000_000_000].map(count_text), ["950", "9.8 million", "26.9 billion", "397 billion"]);
});
