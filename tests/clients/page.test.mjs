// page.test.mjs -- the web page in headless Chromium, served by the real program. Where the tiny model cannot be made to say
// what should be looked at, only its answers come from scripted.mjs. Screenshots of every state go to SCREENSHOTS.
import assert from "node:assert/strict";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { chromium } from "playwright-core";
import { scripts, startScripted } from "./scripted.mjs";
import { startServer } from "./server.mjs";

const axe_source = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const shots = process.env.SCREENSHOTS ?? "screenshots";
const desktop = { width: 1200, height: 800 }, phone = { width: 390, height: 780 };

let server, scripted, plain, origin, browser, context, page, asked, faults;

before(async () => {
  mkdirSync(shots, { recursive: true });
  server = await startServer();
  scripted = await startScripted(server.url, { page: process.env.PAGE });
  if (process.env.PAGE) plain = await startScripted(server.url, { page: process.env.PAGE, script: false });
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
});
after(async () => {
  await browser?.close();
  await scripted?.stop();
  await plain?.stop();
  if (server) assert.equal(await server.stop(), 0);
});
afterEach(async () => {
  await context?.close();
  assert.deepEqual(faults, [], "the page reported errors");
  // No request leaves the machine; none goes anywhere but to the server that gave the page.
  for (const url of asked) assert.ok(url.startsWith(origin + "/") || url.startsWith("data:"), url);
});

async function open({ script = false, url, models = true, ...options } = {}) {
  asked = [];
  faults = [];
  context = await browser.newContext({ viewport: desktop, ...options });
  page = await context.newPage();
  page.setDefaultTimeout(20000);
  page.on("request", (request) => asked.push(request.url()));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("console", (message) => { if (/Content Security Policy/.test(message.text())) faults.push(message.text()); });
  origin = url ?? (script ? scripted.url : plain?.url ?? server.url);
  await page.goto(origin + "/");
  if (models) await page.waitForFunction(() => document.querySelector("#model option"));
}

const shot = (name) => page.screenshot({ path: join(shots, name + ".png") });
const send = async (text) => {
  await page.fill("#input", text);
  await page.press("#input", "Enter");
};
const idle = () => page.waitForFunction(() => document.querySelector("#send").textContent === "Send");
const turns = (role) => page.locator(`article.${role}`);
const focused = () => page.evaluate(() => document.activeElement.textContent.trim() || document.activeElement.id);

// What the rules of accessibility that a machine can check say about the page as it is now.
async function accessible(what) {
  await page.evaluate(axe_source + ";0");
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const found = violations.map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.html.slice(0, 120) + " " + (node.any[0]?.message ?? "")).join(" | ")}`);
  assert.deepEqual(found, [], what);
}
const no_sideways_scroll = async () =>
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the window");

test("the real model: send, stream, readout, reload", async () => {
  await open();
  await shot("empty");
  assert.match(await page.locator("#model").inputValue(), /braid-demo/);
  await send("Repeat: blue river");
  await idle();
  const text = await turns("assistant").locator(".text.markdown").textContent();
  assert.ok(text.length > 0);
  assert.match(await turns("assistant").locator(".speed").textContent(), /^\d+ tokens · [\d.,]+ tok\/s · first .* · prompt \d+/);
  assert.match(await page.locator("#context").textContent(), /\d+ of 4,096 tokens of context/);
  await shot("answer");
  // The conversation is there again after a reload, and in the list of conversations.
  await page.reload();
  assert.equal(await turns("assistant").locator(".text.markdown").textContent(), text);
  await page.keyboard.press("Alt+n");
  assert.equal(await turns("assistant").count(), 0);
  await page.keyboard.press("Alt+h");
  await page.click("#history li .open");
  assert.equal(await turns("assistant").locator(".text.markdown").textContent(), text);
});

test("a reload keeps the open conversation, of those that are kept and of those that are not", async () => {
  await open({ script: true });
  const texts = () => page.locator("#turns .text").allTextContents();
  await send("short one");
  await idle();
  await page.keyboard.press("Alt+n");
  await send("short two");
  await idle();
  // The one that is open, which need not be the newest.
  await page.keyboard.press("Alt+h");
  await page.locator("#history li .open").nth(1).click();
  await page.keyboard.press("Escape");
  const before = await texts();
  assert.equal(before[0], "short one");
  await page.reload();
  assert.deepEqual(await texts(), before);
  // A question whose answer a reload interrupts, with what had come of the answer.
  await send("endless");
  await page.waitForFunction(() => /and on/.test(document.querySelector("article.assistant:last-of-type").textContent));
  await page.reload();
  assert.equal(await turns("user").last().locator(".text").textContent(), "endless");
  assert.match(await turns("assistant").last().locator(".text.markdown").textContent(), /^and on/);
  assert.equal(await turns("assistant").last().locator(".note").textContent(), "Stopped.");
  // A new conversation stays a new one.
  await page.keyboard.press("Alt+n");
  await page.reload();
  assert.equal(await turns("user").count(), 0);
  // With nothing kept, the tab alone has it: nothing of it is in the storage that outlives the tab.
  await page.keyboard.press("Alt+s");
  await page.getByLabel("Keep conversations in this browser").uncheck();
  await page.keyboard.press("Escape");
  await send("short secret");
  await idle();
  const secret = await texts();
  await page.reload();
  assert.deepEqual(await texts(), secret);
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("secret")), false);
  const other = await context.newPage();
  await other.goto(origin + "/");
  await other.waitForFunction(() => document.querySelector("#model option"));
  assert.equal(await other.locator("article").count(), 0);
  await other.close();
  // A deleted conversation does not come back.
  await page.keyboard.press("Alt+n");
  await page.reload();
  assert.equal(await turns("user").count(), 0);
});

test("long and hostile answers: all of it is there at the end, nothing is fetched", async () => {
  await open({ script: true });
  await send("table");
  await page.waitForFunction(() => document.querySelectorAll("article.assistant tbody tr").length > 500);
  await shot("table-grows");
  await idle();
  assert.equal(await turns("assistant").locator("tbody tr").count(), 10000);
  assert.equal(await turns("assistant").locator("tbody tr").last().textContent(), "999999980001");
  assert.equal(await turns("assistant").locator(".markdown > p").last().textContent(), "The end.");
  assert.equal(await turns("assistant").locator(".unread").count(), 0);
  await page.keyboard.press("Alt+n");
  await send("listing");
  await idle();
  assert.equal(await turns("assistant").locator("pre code").textContent(), Array.from({ length: 3000 }, (_, i) => `print(${i})`).join("\n"));
  assert.equal(await turns("assistant").locator(".markdown > p").last().textContent(), "The end.");
  await page.keyboard.press("Alt+n");
  await send("hostile");
  await idle();
  assert.match(await turns("assistant").locator(".markdown").textContent(), /The end\.$/);
  assert.equal(await page.locator("article img").count(), 0);
  await no_sideways_scroll();
});

test("the real model: a tool call is shown and its result goes back", async () => {
  await open();
  await page.keyboard.press("Alt+s");
  await page.click("text=Insert an example tool");
  await page.keyboard.press("Escape");
  await send("What is the weather in Paris?");
  await idle();
  const call = turns("assistant").first().locator(".call");
  assert.equal(await call.locator("h3").textContent(), "Calls get_weather");
  assert.deepEqual(JSON.parse(await call.locator("pre").textContent()), { city: "Paris" });
  assert.equal(await page.locator("details.thought").first().evaluate((details) => details.open), false);
  await shot("tool-call");
  await accessible("a tool call");
  await page.getByLabel("Result of get_weather").fill("Sunny, 21 degrees.");
  await page.click("text=Send result");
  await idle();
  assert.equal(await turns("tool").count(), 1);
  assert.equal(await turns("assistant").count(), 2);
  await shot("tool-result");
});

test("the real model: an answer in the form of a schema", async () => {
  await open();
  const asked = [];
  page.on("request", (request) => { if (request.url().endsWith("/chat/completions")) asked.push(request.postDataJSON()); });
  const say_so = async (text) => {
    await send(text);
    await idle();
    return turns("assistant").last();
  };
  await page.keyboard.press("Alt+s");
  assert.equal(await page.getByLabel("Schema (JSON)").isVisible(), false);
  await page.getByLabel("Answer format").selectOption("json_schema");
  // What cannot be a schema is said in the panel, and by the answer if it is sent all the same.
  const schema = page.getByLabel("Schema (JSON)");
  for (const [text, fault] of [["{", /not JSON/], ["[1]", /is a JSON object/], ["", /needs a schema/]]) {
    await schema.fill(text + " ");
    await schema.press("Tab");
    assert.match((await page.locator("#settings .fault").allTextContents()).join(""), fault);
    assert.equal(await schema.getAttribute("aria-invalid"), "true");
  }
  assert.match(await (await say_so("hello")).locator(".error").textContent(), /needs a schema/);
  assert.equal(asked.length, 0);
  await page.getByRole("button", { name: "Insert an example schema" }).click();
  assert.equal(await schema.getAttribute("aria-invalid"), "false");
  await shot("settings-schema");
  await accessible("settings with a schema");
  const answer = await say_so("What is the weather in Paris?");
  assert.equal(asked.at(-1).response_format.type, "json_schema");
  assert.deepEqual(asked.at(-1).response_format.json_schema.schema.required, ["city", "degrees", "sky"]);
  const json = JSON.parse(await answer.locator("pre code").textContent());
  assert.deepEqual(Object.keys(json), ["city", "degrees", "sky"]);
  assert.ok(Number.isInteger(json.degrees) && ["clear", "cloudy", "rain"].includes(json.sky));
  await shot("json-answer");
  await accessible("an answer in JSON");
  await page.getByLabel("Answer format").selectOption("json_object");
  assert.equal(await schema.isVisible(), false);
  await page.getByLabel("Tokens at most").fill("200");
  await say_so("Say it in JSON.");
  assert.deepEqual(asked.at(-1).response_format, { type: "json_object" });
  // Kept over a reload, and gone with the defaults.
  await page.reload();
  await page.keyboard.press("Alt+s");
  assert.equal(await page.getByLabel("Answer format").inputValue(), "json_object");
  await page.click("text=All as the server's defaults");
  await page.keyboard.press("Escape");
  await say_so("hello");
  assert.equal(asked.at(-1).response_format, undefined);
  // An answer that was asked for in JSON is shown as such after a reload too.
  await page.reload();
  await page.keyboard.press("Alt+h");
  await page.locator("#history li .open").last().click();
  assert.equal(JSON.parse(await turns("assistant").locator("pre code").first().textContent()).city, json.city);
});

test("several models: which one is in memory, and changing it", async () => {
  const folder = mkdtempSync(join(tmpdir(), "braid-models-"));
  copyFileSync(join(process.env.MODELS, "braid-tiny-moe-q4_k_m.gguf"), join(folder, "tiny.gguf"));
  writeFileSync(join(folder, "broken.gguf"), "GGUF" + "x".repeat(100));
  const several = await startServer(["--models-dir", folder]);
  const proxy = process.env.PAGE ? await startScripted(several.url, { page: process.env.PAGE, script: false }) : null;
  try {
    await open({ url: proxy?.url ?? several.url });
    const select = page.locator("#model"), row = (name) => page.locator(".models li", { hasText: name });
    const state = (name, wanted) => page.waitForFunction(([name, wanted]) => [...document.querySelectorAll(".models li")]
      .some((row) => row.textContent.includes(name) && row.dataset.state === wanted), [name, wanted]);
    assert.equal(await select.isDisabled(), false);
    assert.match((await select.locator("option").allTextContents()).join("; "), /^braid-demo[^;(]*; broken \(not loaded\); tiny \(not loaded\)$/);
    await page.keyboard.press("Alt+l");
    await state("braid-demo", "loaded");
    assert.match(await row("braid-demo").textContent(), /in memory · [\d.]+ MB · [\d.]+ million parameters · Q8_0 · 4,096 tokens of context.*In use/);
    assert.match(await row("tiny").textContent(), /not loaded · [\d.]+ .B.*Use/);
    await shot("models");
    await accessible("the list of models");
    // By its button, with the keyboard alone; the button keeps the focus.
    await page.getByRole("button", { name: "Use tiny" }).focus();
    await page.keyboard.press("Enter");
    await state("tiny", "loaded");
    await state("braid-demo", "unloaded");
    assert.match(await focused(), /In use/);
    assert.equal(await select.inputValue(), "tiny");
    await page.waitForFunction(() => document.querySelector("#said").textContent === "tiny is in memory");
    // By asking: the list in the head chooses, the question loads.
    await select.selectOption({ label: "braid-demo (not loaded)" }).catch(async () => select.selectOption({ index: 0 }));
    await send("hello");
    await idle();
    await state("braid-demo", "loaded");
    assert.ok((await turns("assistant").locator(".markdown").textContent()).length > 0);
    // One that cannot be loaded says why and costs nothing.
    await page.getByRole("button", { name: "Use broken" }).click();
    await state("broken", "failed");
    assert.match(await row("broken").locator(".fault").textContent(), /broken\.gguf/);
    await state("braid-demo", "loaded");
    await page.getByRole("button", { name: "Use braid-demo" }).click();
    await shot("models-failed");
    await accessible("a model that cannot be loaded");
    await page.emulateMedia({ colorScheme: "dark" });
    await accessible("models, dark");
    await page.setViewportSize(phone);
    await no_sideways_scroll();
    await shot("models-phone-dark");
    await accessible("models on a phone");
  } finally {
    await context.close();
    await proxy?.stop();
    assert.equal(await several.stop(), 0);
    rmSync(folder, { recursive: true });
  }
});

test("a server with keys: the page asks for one, keeps it for the tab only, and works with it", async () => {
  const keyed = await startServer(["--api-key", "open sesame"]);
  const proxy = process.env.PAGE ? await startScripted(keyed.url, { page: process.env.PAGE, script: false }) : null;
  try {
    await open({ url: proxy?.url ?? keyed.url, models: false });
    await send("hello");
    await idle();
    assert.match(await turns("assistant").locator(".error").textContent(), /wants an API key/);
    assert.equal(await focused(), "set-key");
    await shot("key-wanted");
    await accessible("a key is wanted");
    await page.keyboard.type("wrong");
    await page.keyboard.press("Tab");
    await page.getByRole("button", { name: "Try again" }).click();
    await idle();
    assert.match(await turns("assistant").locator(".error").textContent(), /wants an API key/);
    await page.locator("#set-key").fill("open sesame");
    await page.locator("#set-key").press("Tab");
    await page.waitForFunction(() => document.querySelector("#model option"));  // what the server has is known now
    await page.getByRole("button", { name: "Try again" }).click();
    await idle();
    assert.ok((await turns("assistant").locator(".markdown").textContent()).length > 0);
    await page.keyboard.press("Alt+l");
    await page.waitForFunction(() => document.querySelector("#engine .tiles dd").textContent !== "–");
    assert.match(await page.locator(".models").textContent(), /in memory/);
    assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("sesame")), false);
    await page.reload();
    await page.waitForFunction(() => document.querySelector("#model option"));
  } finally {
    await context.close();
    await proxy?.stop();
    assert.equal(await keyed.stop(), 0);
  }
});

test("an answer that waits for its model says so", async () => {
  await open({ script: true });
  let state = "unloaded", release;
  const loaded = new Promise((resolve) => { release = resolve; });
  const list = () => ({ object: "list", data: [["here", "loaded"], ["there", state]].map(([id, value]) => ({ id, object: "model", status: { value }, meta: { size: 1e9 } })) });
  await page.route("**/v1/models", (route) => route.fulfill({ json: list() }));
  await page.route("**/v1/chat/completions", async (route) => {
    state = "loading";
    await loaded;
    state = "loaded";
    await route.continue();
  });
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll("#model option").length === 2);
  await page.locator("#model").selectOption("there");
  await send("short");
  await page.waitForFunction(() => /^there is being loaded, [\d.]+ s$/.test(document.querySelector("article.assistant .speed")?.textContent));
  await shot("model-loading");
  await accessible("a model is being loaded");
  release();
  await idle();
  assert.match(await turns("assistant").textContent(), /sunny/);
  assert.equal(scripted.seen.requests.at(-1).model, "there");
});

test("the real model: the engine view moves while an answer is written", async () => {
  await open();
  await page.keyboard.press("Alt+l");
  await page.waitForFunction(() => document.querySelectorAll("#engine .tiles dd")[0].textContent === "0");
  assert.match(await page.locator("#engine .gauge").first().textContent(), /\d+ of \d+/);
  assert.match(await page.locator("#engine tbody").textContent(), /nothing runs/);
  // Requests of others are seen as well.
  const gone = new AbortController();
  const others = fetch(server.url + "/v1/completions", {
    method: "POST", signal: gone.signal, headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ prompt: "a", max_tokens: 4000, ignore_eos: true, stream: true }),
  }).then(async (response) => { for await (const part of response.body) void part; }).catch(() => {});
  await page.waitForFunction(() => /writes/.test(document.querySelector("#engine tbody").textContent));
  await page.waitForFunction(() => document.querySelectorAll("#engine .tiles dd")[0].textContent === "1");
  await page.waitForFunction(() => Number(document.querySelectorAll("#engine .tiles dd")[2].textContent.replace(",", "")) > 0);
  await shot("engine");
  await accessible("the engine view");
  gone.abort();
  await others;
});

test("markdown, code and tables; wide, narrow, light, dark", async () => {
  await open({ script: true, colorScheme: "light" });
  await send("markdown please");
  await idle();
  const text = turns("assistant").locator(".text.markdown");
  assert.equal(await text.locator("ol > li").count(), 2);
  assert.equal(await text.locator("ol ul > li").count(), 2);
  assert.equal(await text.locator("table tbody tr").count(), 2);
  assert.match(await text.locator("pre code").textContent(), /^def merge/);
  assert.equal(await text.locator("img").count(), 0);
  assert.match(await text.textContent(), /<img src=x onerror=alert\(1\)>/);
  assert.equal(await text.locator("a").getAttribute("rel"), "noopener noreferrer nofollow");
  await shot("markdown-light");
  await accessible("light");
  const light = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.emulateMedia({ colorScheme: "dark" });
  const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.notEqual(light, dark);
  await shot("markdown-dark");
  await accessible("dark");
  // The setting wins over the system.
  await page.keyboard.press("Alt+s");
  await page.getByLabel("Colours").selectOption("light");
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), light);
  await page.getByLabel("Colours").selectOption("dark");
  await shot("settings-dark");
  await accessible("settings, dark");
  await page.keyboard.press("Escape");
  await page.setViewportSize(phone);
  await no_sideways_scroll();
  await shot("markdown-phone-dark");
});

test("thinking is folded, opens, and is followed while it grows; stop keeps what there is", async () => {
  await open({ script: true });
  await send("thinking about it");
  const details = page.locator("details.thought");
  await details.waitFor();
  assert.equal(await details.evaluate((element) => element.open), false);
  assert.match(await details.locator("summary").textContent(), /^Thinking, [\d.]+ s$/);
  await details.locator("summary").click();
  await page.waitForFunction(() => document.querySelector("details.thought .text").textContent.length > 200);
  assert.equal(await turns("assistant").getAttribute("aria-busy"), "true");
  await shot("thinking");
  await page.click("#send");
  await idle();
  assert.match(await details.locator("summary").textContent(), /^Thought for/);
  assert.equal(await turns("assistant").locator(".note").textContent(), "Stopped.");
  assert.equal(await details.evaluate((element) => element.open), true);
});

test("a stream stops at Escape, and the server notices", async () => {
  await open({ script: true });
  const gone = scripted.seen.gone;
  await send("endless");
  await page.waitForFunction(() => / tok\/s/.test(document.querySelector("article.assistant .speed")?.textContent));
  assert.match(await turns("assistant").locator(".speed").textContent(), /tokens · [\d.,]+ tok\/s/);
  await page.keyboard.press("Escape");
  await idle();
  assert.equal(await turns("assistant").locator(".note").textContent(), "Stopped.");
  for (let i = 0; i < 100 && scripted.seen.gone === gone; ++i) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(scripted.seen.gone, gone + 1);
});

test("edit, regenerate, versions, branch", async () => {
  await open({ script: true });
  await send("first question");
  await idle();
  await turns("assistant").getByRole("button", { name: "Regenerate" }).click();
  await idle();
  assert.match(await turns("assistant").locator(".versions").textContent(), /2\/2/);
  await turns("user").getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Text of the message").fill("second question");
  await page.keyboard.press("Control+Enter");
  await idle();
  assert.equal(await turns("user").locator(".text").textContent(), "second question");
  assert.match(await turns("user").locator(".versions").textContent(), /2\/2/);
  assert.deepEqual(scripted.seen.requests.at(-1).messages, [{ role: "user", content: "second question" }]);
  await shot("versions");
  await turns("user").getByRole("button", { name: "Previous version" }).click();
  assert.equal(await turns("user").locator(".text").textContent(), "first question");
  assert.match(await turns("assistant").locator(".versions").textContent(), /2\/2/);
  assert.equal(await focused(), "‹");
  // An answer that is edited is what the conversation goes on from.
  await turns("assistant").getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Text of the message").fill("It rains.");
  await page.getByRole("button", { name: "Save" }).click();
  await send("And then?");
  await idle();
  assert.deepEqual(scripted.seen.requests.at(-1).messages.map((message) => message.content), ["first question", "It rains.", "And then?"]);
  // A branch is a conversation of its own.
  await turns("assistant").first().getByRole("button", { name: "Branch" }).click();
  assert.equal(await turns("user").count(), 1);
  await page.keyboard.press("Alt+h");
  assert.equal(await page.locator("#history li").count(), 2);
  await shot("conversations");
  await accessible("conversations");
  await page.locator("#history li .open").nth(1).click();
  assert.equal(await turns("user").count(), 2);
});

test("two calls, their results, and what goes back", async () => {
  await open({ script: true });
  await send("calls please");
  await idle();
  assert.equal(await page.locator(".call").count(), 2);
  await shot("two-calls");
  await page.getByLabel("Result of get_weather").fill("Sunny");
  await page.getByLabel("Result of get_time").fill("12:00");
  await page.keyboard.press("Control+Enter");
  await idle();
  const sent = scripted.seen.requests.at(-1).messages;
  assert.deepEqual(sent.map((message) => message.role), ["user", "assistant", "tool", "tool"]);
  assert.equal(sent[1].reasoning_content, scripts.calls.reasoning);
  assert.equal(sent[1].tool_calls[0].function.arguments, scripts.calls.calls[0][1]);
  assert.deepEqual(sent[3], { role: "tool", content: "12:00", tool_call_id: "call_1" });
});

test("what goes wrong is said, and can be tried again", async () => {
  await open({ script: true });
  await send("broken answer");
  await idle();
  assert.match(await turns("assistant").locator(".error").textContent(), /connection ended before the answer did/);
  await turns("assistant").getByRole("button", { name: "Try again" }).click();
  await idle();
  await send("fault now");
  await idle();
  assert.match(await turns("assistant").last().locator(".error").textContent(), /the engine has stopped/);
  await shot("error");
  await accessible("an error");
  await send("limit now");
  await idle();
  assert.match(await turns("assistant").last().locator(".note").textContent(), /Cut off/);
  await page.route("**/v1/chat/completions", (route) => route.abort());
  await send("hello");
  await idle();
  assert.match(await turns("assistant").last().locator(".error").textContent(), /does not answer/);
});

test("the real server's refusal is said, and a value that is out of range is marked", async () => {
  await open();
  await page.keyboard.press("Alt+s");
  await page.getByLabel("Temperature").fill("9");
  await page.getByLabel("Temperature").press("Tab");
  assert.ok((await page.locator(".fault").allTextContents()).join("").length > 0);
  await page.keyboard.press("Escape");
  await send("hello");
  await idle();
  assert.match(await turns("assistant").locator(".error").textContent(), /temperature/);
});

test("settings go along with the request and stay", async () => {
  await open({ script: true });
  await page.keyboard.press("Alt+s");
  assert.equal(await focused(), "set-system");
  await page.getByLabel("System prompt").fill("Be brief.");
  await page.getByLabel("Thinking", { exact: true }).selectOption("off");
  await page.getByLabel("Temperature").fill("0.5");
  await page.getByLabel("Seed").fill("7");
  await page.getByLabel("Stop at (one per line)").fill("END\nSTOP");
  await shot("settings");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#settings").isHidden(), true);
  assert.equal(await focused(), "Settings");
  await send("short");
  await idle();
  const request = scripted.seen.requests.at(-1);
  assert.deepEqual(request.messages[0], { role: "system", content: "Be brief." });
  assert.equal(request.temperature, 0.5);
  assert.equal(request.seed, 7);
  assert.equal(request.enable_thinking, false);
  assert.deepEqual(request.stop, ["END", "STOP"]);
  assert.equal(request.top_p, undefined);
  await page.reload();
  assert.equal(await page.getByLabel("System prompt").inputValue(), "Be brief.");
});

test("a phone: everything fits, panels cover the page, return makes a new line", async () => {
  await open({ script: true, viewport: phone, hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
  await no_sideways_scroll();
  await shot("phone-empty");
  await page.fill("#input", "markdown");
  await page.press("#input", "Enter");
  assert.equal(await page.inputValue("#input"), "markdown\n");
  await page.tap("#send");
  await idle();
  await no_sideways_scroll();
  await shot("phone");
  await accessible("phone");
  for (const box of await page.locator("article button, .top button, #send").all()) {
    const { height } = await box.boundingBox() ?? { height: 40 };
    assert.ok(height >= 28, "a button is too small to be tapped: " + (await box.textContent()));
  }
  await page.tap("#settings-button");
  await no_sideways_scroll();
  await shot("phone-settings");
  await page.locator("#settings").getByRole("button", { name: "Close" }).tap();
  await page.tap("#engine-button");
  await page.waitForFunction(() => document.querySelector("#engine .tiles dd").textContent !== "–");
  await shot("phone-engine");
  await accessible("engine on a phone");
  await page.locator("#engine").getByRole("button", { name: "Close" }).tap();
  assert.equal(await page.locator("#engine").isHidden(), true);
});

test("the keyboard alone: ask, stop, edit, versions, panels; focus is never lost", async () => {
  await open({ script: true });
  const { keyboard } = page;
  const lost = () => page.evaluate(() => document.activeElement === document.body || document.activeElement === null);
  assert.equal(await focused(), "input");
  await keyboard.type("short one");
  await keyboard.press("Enter");
  await idle();
  assert.equal(await lost(), false);
  await keyboard.press("ArrowUp");  // edits the last message
  await keyboard.press("Control+A");
  await keyboard.type("endless");
  await keyboard.press("Control+Enter");
  await page.waitForFunction(() => document.querySelector("#send").textContent === "Stop");
  await page.waitForFunction(() => /and on/.test(document.querySelector("article.assistant").textContent));
  await keyboard.press("Escape");
  await idle();
  await keyboard.press("Alt+e");
  await keyboard.press("Escape");  // leaves the editor without a change
  assert.equal(await page.locator(".editor").count(), 0);
  assert.equal(await lost(), false);
  // A button that goes away hands the focus on.
  await turns("assistant").getByRole("button", { name: "Regenerate" }).focus();
  await keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#send").textContent === "Stop");
  assert.equal(await lost(), false);
  await keyboard.press("Escape");
  await idle();
  await keyboard.press("Alt+r");
  await page.waitForFunction(() => document.querySelector("#send").textContent === "Stop");
  await keyboard.press("Escape");
  await idle();
  for (const [key, panel] of [["Alt+s", "#settings"], ["Alt+l", "#engine"], ["Alt+h", "#history"]]) {
    await keyboard.press(key);
    assert.equal(await page.locator(panel).isVisible(), true, panel);
    assert.equal(await lost(), false, panel);
    await keyboard.press(key);
    assert.equal(await page.locator(panel).isHidden(), true, panel);
    assert.equal(await lost(), false, panel);
  }
  await keyboard.press("Alt+i");
  assert.equal(await focused(), "input");
  // Every control can be reached and shows where the focus is.
  const reached = new Set();
  for (let i = 0; i < 40; ++i) {
    await keyboard.press("Tab");
    const here = await page.evaluate(() => {
      const at = document.activeElement, style = getComputedStyle(at);
      if (at === document.body) return { name: "", ring: true };  // behind the last one, before the first
      return { name: at.id || at.textContent.trim(), ring: style.outlineStyle !== "none" };
    });
    assert.ok(here.ring, "no focus ring on " + here.name);
    reached.add(here.name);
  }
  for (const name of ["history-button", "fresh", "engine-button", "settings-button", "Copy", "Edit", "Regenerate", "Branch", "input", "send"]) {
    assert.ok(reached.has(name), name + " cannot be reached; reached: " + [...reached].join(", "));
  }
  await keyboard.press("Alt+n");
  assert.equal(await turns("user").count(), 0);
  assert.equal(await focused(), "input");
  await accessible("a new conversation");
});

test("screen readers hear a whole answer once, not its tokens", async () => {
  await open({ script: true });
  await page.evaluate(() => {
    window.heard = [];
    new MutationObserver(() => { const text = document.querySelector("#said").textContent; if (text) window.heard.push(text); })
      .observe(document.querySelector("#said"), { childList: true, characterData: true, subtree: true });
  });
  await send("short");
  await idle();
  await page.waitForFunction(() => window.heard.at(-1)?.includes("sunny"));
  assert.ok((await page.evaluate(() => window.heard)).length <= 2);
  assert.equal(await page.locator("#turns").getAttribute("aria-live"), "off");
});
