// agents.test.mjs -- Codex, Claude Code and OpenCode, unmodified, each with a task in which a tool really runs.
//
// The server has its default options. The built-in model is tiny, so the agents get short instructions; Codex's name a
// permission, as the model would choose any, and Codex refuses most. What is asserted is the protocol: a call of an
// offered tool came out, the agent ran it (by the agent's own account), its result went back, and the agent ended by
// itself.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { startServer } from "./server.mjs";

let server;
before(async () => {
  server = await startServer([], 32768);
});
after(async () => assert.equal(await server.stop(), 0));

// A fresh home and a folder with one file.
function place(name) {
  const root = mkdtempSync(join(tmpdir(), `braid-${name}-`));
  const home = join(root, "home"), work = join(root, "work");
  mkdirSync(home);
  mkdirSync(work);
  writeFileSync(join(work, "note.txt"), "The code is 48213.\n");
  return { home, work };
}

function run(program, args, { home, work }, env) {
  const bin = join(process.cwd(), "node_modules", ".bin");
  return new Promise((resolve) => {
    const child = execFile(join(bin, program), args,
      { cwd: work, timeout: 400000, maxBuffer: 1 << 26, env: { ...process.env, HOME: home, PWD: work, PATH: bin + ":" + process.env.PATH, ...env } },
      (error, stdout, stderr) => resolve({ code: error ? error.code ?? 1 : 0, stdout, text: stdout + stderr }));
    child.stdin.end();
  });
}

// Requests to a path so far: prompt tokens, and how many of them were found again.
function requests(path) {
  return [...server.log().matchAll(/path="([^"]+)" status=(\d+).*? reason=(\S+) prompt=(\d+) cached=(\d+)/g)]
    .filter((m) => m[1] === path)
    .map((m) => ({ status: Number(m[2]), reason: m[3], prompt: Number(m[4]), cached: Number(m[5]) }));
}

// The lines of an output that are JSON.
function events(stdout) {
  return stdout.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
}

function expectToolLoop(path) {
  const all = requests(path);
  const call = all.findIndex((request) => request.reason === "tool_calls");
  assert.ok(call >= 0, "no call was made: " + JSON.stringify(all));
  assert.ok(all.slice(call + 1).some((request) => request.prompt > all[call].prompt), "its result did not come back");
}

test("codex", async () => {
  const there = place("codex");
  const codex = join(there.home, ".codex");
  mkdirSync(codex);
  writeFileSync(join(codex, "config.toml"), `
model = "braid-demo"
model_provider = "braid"
web_search = "disabled"
approval_policy = "never"
sandbox_mode = "danger-full-access"
include_permissions_instructions = false
include_environment_context = false
[skills]
include_instructions = false
[agents]
enabled = false
[features]
goals = false
[model_providers.braid]
name = "braid"
base_url = "${server.url}/v1"
wire_api = "responses"
`);
  const out = await run("codex", ["exec", "--json", "--skip-git-repo-check", "Call exec_command with sandbox_permissions use_default and cmd cat note.txt."], there, { CODEX_HOME: codex });
  assert.equal(out.code, 0, out.text);
  assert.doesNotMatch(out.text, /Reconnecting|stream disconnected|unsupported call|failed to parse/);
  const ran = events(out.stdout).filter((event) => event.type === "item.completed" && event.item.type === "command_execution");
  assert.ok(ran.some((event) => event.item.status === "completed"), out.text);
  expectToolLoop("/v1/responses");
});

test("claude code", async () => {
  const there = place("claude");
  const out = await run("claude",
    ["-p", "Call Bash with command cat note.txt.", "--system-prompt", "You call functions.", "--tools", "Bash",
      "--dangerously-skip-permissions", "--output-format", "stream-json", "--verbose"], there, {
      ANTHROPIC_BASE_URL: server.url, ANTHROPIC_AUTH_TOKEN: "any", ANTHROPIC_MODEL: "braid-demo",
      ANTHROPIC_DEFAULT_HAIKU_MODEL: "braid-demo", CLAUDE_CODE_MAX_OUTPUT_TOKENS: "512", MAX_THINKING_TOKENS: "0",
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS: "1",
      ENABLE_TOOL_SEARCH: "false", IS_SANDBOX: "1",
    });
  assert.equal(out.code, 0, out.text);
  const told = events(out.stdout);
  const result = told.find((event) => event.type === "user")?.message.content[0];
  assert.equal(result?.type, "tool_result");
  assert.doesNotMatch(JSON.stringify(result.content), /No such tool|InputValidationError/);
  assert.equal(told.at(-1).subtype, "success");
  expectToolLoop("/v1/messages");
});

test("opencode", async () => {
  const there = place("opencode");
  writeFileSync(join(there.work, "opencode.json"), JSON.stringify({
    $schema: "https://opencode.ai/config.json", model: "braid/braid-demo", small_model: "braid/braid-demo",
    autoupdate: false, share: "disabled", permission: "allow", agent: { build: { prompt: "You call functions." } },
    provider: { braid: { npm: "@ai-sdk/openai-compatible", name: "braid", options: { baseURL: server.url + "/v1", apiKey: "any" },
      models: { "braid-demo": { name: "demo", reasoning: true, tool_call: true, limit: { context: 32768, output: 512 } } } } },
  }));
  const out = await run("opencode", ["run", "--format", "json", "Call bash with command cat note.txt."], there, {});
  assert.equal(out.code, 0, out.text);
  const ran = events(out.stdout).filter((event) => event.type === "tool_use").map((event) => event.part);
  // "invalid" is what it makes of a call that it did not offer. The tiny model picks a tool and a path that need not exist.
  assert.ok(ran.length > 0 && ran.every((part) => part.tool !== "invalid"), out.text);
  expectToolLoop("/v1/chat/completions");
});
