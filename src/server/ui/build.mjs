// build.mjs -- puts src/ together into page.html, one file without references: style, script and icon are inside.
// `--check` only says whether page.html is what src/ gives (the version of esbuild is pinned, so it is the same everywhere).
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const source = (name) => join(here, "src", name);

async function bundle(entry, options = {}) {
  const result = await build({
    entryPoints: [source(entry)], bundle: true, write: false, minify: true, charset: "utf8", legalComments: "none",
    logLevel: "error", target: ["chrome100", "firefox100", "safari15.4"], absWorkingDir: here, ...options,
  });
  return result.outputFiles[0].text.trim();
}

const style = await bundle("style.css");
const script = await bundle("main.js", { format: "iife" });
for (const text of [style, script]) {
  if (/<\/(style|script)/i.test(text)) throw new Error("a bundle contains an end tag");
}
const page = readFileSync(source("page.html"), "utf8")
  .replace("<!doctype html>", "<!doctype html>\n<!-- Made by `npm run build` from src/server/ui/src. Do not edit. -->")
  .replace("/* style.css */", () => style)
  .replace("/* main.js */", () => script);

const target = join(here, "page.html");
if (process.argv.includes("--check")) {
  let there = "";
  try { there = readFileSync(target, "utf8"); } catch { /* not built yet */ }
  if (there !== page) {
    console.error("src/server/ui/page.html is not what src/server/ui/src gives: run `npm install && npm run build` there and commit it");
    process.exit(1);
  }
} else {
  writeFileSync(target, page);
  console.log(`page.html: ${page.length} bytes`);
}
