// build.mjs -- puts the sources of this folder and the packages that they import together into page.html, one file without references: style, script and
// icon are inside, and the packages' licenses in a comment at the end.
// `--check` only says whether page.html is what the sources give (the versions of all packages are pinned, so it is the same everywhere).
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const source = (name) => join(here, name);

async function bundle(entry, options = {}) {
  const result = await build({
    entryPoints: [source(entry)], bundle: true, write: false, minify: true, charset: "utf8", legalComments: "none",
    logLevel: "error", target: ["chrome100", "firefox100", "safari15.4"], absWorkingDir: here, metafile: true, ...options,
  });
  for (const path of Object.keys(result.metafile.inputs)) {
    const found = /^(.*node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(path);
    if (found) packages.set(found[2], resolve(here, found[1]));
  }
  return result.outputFiles[0].text.trim();
}

// Of every package that is in the page; in an HTML comment, where two dashes may not stand.
function licenses() {
  return [...packages].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, folder]) => {
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} has no license file`);
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").replace(/\r\n/g, "\n").trim()}\n`;
  }).join("\n").replace(/-(?=-)/g, "- ");
}

const packages = new Map();  // name and folder of those that are in the page
const style = await bundle("style.css");
const script = await bundle("main.js", { format: "iife" });
for (const text of [style, script]) {
  if (/<\/?(style|script)/i.test(text)) throw new Error("a bundle contains a tag that would end it, or hide its end");
}
const page = readFileSync(source("page.template.html"), "utf8")
  .replace("<!doctype html>", "<!doctype html>\n<!-- Made by `npm run build` from src/server/ui. Do not edit. -->")
  .replace("/* style.css */", () => style)
  .replace("/* main.js */", () => script)
  .trimEnd() + `\n<!--\nThis page contains:\n\n${licenses()}-->\n`;

const target = join(here, "page.html");
if (process.argv.includes("--check")) {
  let there = "";
  try { there = readFileSync(target, "utf8"); } catch { /* not built yet */ }
  if (there !== page) {
    console.error("src/server/ui/page.html is not what its sources give: run `npm install && npm run build` there and commit it");
    process.exit(1);
  }
} else {
  writeFileSync(target, page);
  console.log(`page.html: ${page.length} bytes`);
}
