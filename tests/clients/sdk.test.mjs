// sdk.test.mjs -- the official SDKs, unmodified, against the real server: chat, streams, tools, forms, errors, abort.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { startServer } from "./server.mjs";

let server, openai, anthropic;
const weather = {
  name: "get_weather",
  description: "The weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const tools = [{ type: "function", function: weather }];
const question = [{ role: "user", content: "What is the weather in Paris?" }];
const off = { chat_template_kwargs: { enable_thinking: false } };

before(async () => {
  server = await startServer();
  openai = new OpenAI({ baseURL: server.url + "/v1", apiKey: "none" });
  anthropic = new Anthropic({ baseURL: server.url, apiKey: "none" });
});
after(async () => assert.equal(await server.stop(), 0));

test("openai: models", async () => {
  const models = await openai.models.list();
  assert.equal(models.data[0].object, "model");
  assert.equal((await openai.models.retrieve(models.data[0].id)).id, models.data[0].id);
});

test("openai: chat, whole and streamed, say the same", async () => {
  const request = { model: "any", messages: [{ role: "user", content: "Repeat: blue river" }], ...off };
  const whole = await openai.chat.completions.create(request);
  assert.equal(whole.choices[0].finish_reason, "stop");
  assert.ok(whole.usage.completion_tokens > 0);
  let text = "", usage;
  const stream = await openai.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("openai: a tool call, streamed through the helper, and its result", async () => {
  const stream = openai.chat.completions.stream({ model: "any", messages: question, tools, ...off });
  const first = (await stream.finalChatCompletion()).choices[0];
  assert.equal(first.finish_reason, "tool_calls");
  const call = first.message.tool_calls[0];
  assert.equal(call.function.name, "get_weather");
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  const second = await openai.chat.completions.create({
    model: "any", tools, ...off,
    messages: [...question, first.message, { role: "tool", tool_call_id: call.id, content: "Sunny, 21 degrees." }],
  });
  assert.ok(second.choices[0].message.content.length > 0);
  assert.ok(second.usage.prompt_tokens_details.cached_tokens >= 0);
});

test("openai: a required and a named tool are called", async () => {
  for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
    const answer = await openai.chat.completions.create({
      model: "any", messages: [{ role: "user", content: "Say hello to Rome." }], tools, tool_choice, max_tokens: 200, ...off,
    });
    const call = answer.choices[0].message.tool_calls?.[0];
    assert.equal(call?.function.name, "get_weather");
    if (answer.choices[0].finish_reason === "tool_calls") JSON.parse(call.function.arguments);
  }
});

test("openai: a model that calls a tool by itself makes the same call when it must", async () => {
  const object = (properties, ...required) => ({ type: "object", properties, required });
  const text = { type: "string" };
  const several = [
    { name: "read_file", description: "Read a file", parameters: object({ path: text }, "path") },
    { name: "run", description: "Run a command", parameters: object({ command: text }, "command") },
    { name: "set_light", description: "Switch a light", parameters: object({ on: { type: "boolean" }, room: { enum: ["kitchen", "hall"] } }, "on") },
    weather,
  ].map((tool) => ({ type: "function", function: tool }));
  for (const [content, offered] of [["Call run with command ls.", several], ["Turn on the light in the kitchen.", several.slice(2)], ["Weather in Rome?", tools]]) {
    for (const enable_thinking of [false, true]) {
      const request = { model: "any", messages: [{ role: "user", content }], tools: offered, chat_template_kwargs: { enable_thinking } };
      const calls = (completion) => completion.choices[0].message.tool_calls?.map((call) => call.function) ?? [];
      const free = calls(await openai.chat.completions.create({ ...request, tool_choice: "auto" }));
      assert.ok(free.length > 0, "no call under auto: " + content);
      // What was not offered is not called, and arguments fit.
      for (const call of free) {
        const { parameters } = offered.find((tool) => tool.function.name === call.name).function;
        const given = Object.keys(JSON.parse(call.arguments));
        assert.ok(given.every((name) => name in parameters.properties), call.arguments);
        assert.ok(parameters.required.every((name) => given.includes(name)), call.arguments);
      }
      const must = { ...request, tool_choice: "required" };
      assert.deepEqual(calls(await openai.chat.completions.create(must)), free);
      const streamed = calls(await openai.chat.completions.stream(must).finalChatCompletion());
      assert.deepEqual(streamed.map(({ name, arguments: given }) => ({ name, arguments: given })), free);
    }
  }
});

test("openai: a schema binds the answer", async () => {
  const schema = {
    type: "object",
    properties: { city: { type: "string", maxLength: 20 }, days: { type: "integer", minimum: 1, maximum: 9 } },
    required: ["city", "days"],
    additionalProperties: false,
  };
  for (const stream of [false, true]) {
    let text = "";
    const request = {
      model: "any", messages: question, stream, ...off,
      response_format: { type: "json_schema", json_schema: { name: "trip", strict: true, schema } },
    };
    const answer = await openai.chat.completions.create(request);
    if (stream) for await (const chunk of answer) text += chunk.choices[0]?.delta?.content ?? "";
    else text = answer.choices[0].message.content;
    const value = JSON.parse(text);
    assert.deepEqual(Object.keys(value), ["city", "days"]);
    assert.ok(value.days >= 1 && value.days <= 9);
  }
});

test("openai: responses, whole and streamed", async () => {
  const request = { model: "any", input: question, reasoning: { effort: "none" } };
  const whole = await openai.responses.create(request);
  assert.equal(whole.status, "completed");
  const stream = openai.responses.stream(request);
  const types = [];
  for await (const event of stream) types.push(event.type);
  const final = await stream.finalResponse();
  assert.equal(types[0], "response.created");
  assert.equal(types.at(-1), "response.completed");
  assert.equal(final.output_text, whole.output_text);
});

test("openai: a call through responses", async () => {
  const answer = await openai.responses.create({
    model: "any", input: question, reasoning: { effort: "none" }, tools: [{ type: "function", ...weather }],
  });
  const call = answer.output.find((item) => item.type === "function_call");
  assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
});

test("openai: errors name the field, and limits end answers", async () => {
  await assert.rejects(openai.chat.completions.create({ model: "any", messages: question, temperature: 9 }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.param, "temperature");
    return true;
  });
  const long = "word ".repeat(9000);
  await assert.rejects(openai.completions.create({ model: "any", prompt: long }), (error) => {
    assert.equal(error.code, "context_length_exceeded");
    assert.match(error.message, /prompt is too long: \d+ tokens > 4096 maximum/);
    return true;
  });
  const cut = await openai.completions.create({ model: "any", prompt: "def f(", max_tokens: 3 });
  assert.equal(cut.choices[0].finish_reason, "length");
  assert.equal(cut.usage.completion_tokens, 3);
});

test("openai: abort frees the slot", async () => {
  const stream = await openai.completions.create({
    model: "any", prompt: "a", stream: true, max_tokens: 4000, ...{ ignore_eos: true },
  });
  for await (const chunk of stream) {
    if (chunk) break;
  }
  stream.controller.abort();
  for (let i = 0; i < 100; ++i) {
    const health = await (await fetch(server.url + "/health?slots=1")).json();
    if (health.slots_busy === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail("the slot stayed busy");
});

test("anthropic: messages, whole and streamed, say the same", async () => {
  const request = { model: "any", max_tokens: 100, messages: [{ role: "user", content: "Repeat: blue river" }] };
  const whole = await anthropic.messages.create(request);
  assert.equal(whole.stop_reason, "end_turn");
  const streamed = await anthropic.messages.stream(request).finalMessage();
  assert.deepEqual(streamed.content, whole.content);
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  const { input_tokens, cache_read_input_tokens } = whole.usage;
  const counted = await anthropic.messages.countTokens({ model: "any", messages: request.messages });
  assert.equal(counted.input_tokens, input_tokens + cache_read_input_tokens);
});

test("anthropic: thinking, a tool call and its result", async () => {
  const definition = { name: weather.name, description: weather.description, input_schema: weather.parameters };
  const request = { model: "any", max_tokens: 400, tools: [definition], thinking: { type: "enabled", budget_tokens: 1024 } };
  const first = await anthropic.messages.stream({ ...request, messages: question }).finalMessage();
  assert.equal(first.stop_reason, "tool_use");
  assert.equal(first.content[0].type, "thinking");
  const call = first.content.find((block) => block.type === "tool_use");
  assert.deepEqual(call.input, { city: "Paris" });
  const second = await anthropic.messages.create({
    ...request,
    messages: [
      ...question,
      { role: "assistant", content: first.content },
      { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "Sunny, 21 degrees." }] },
    ],
  });
  assert.ok(second.content.length > 0);
});

test("anthropic: errors", async () => {
  await assert.rejects(anthropic.messages.create({ model: "any", max_tokens: 10, messages: [] }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.error.error.type, "invalid_request_error");
    assert.ok(error.requestID);
    return true;
  });
});
