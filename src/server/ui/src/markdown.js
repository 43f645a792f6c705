// markdown.js -- the part of Markdown that models write, as a tree of plain objects. No DOM: render.js makes elements of it.
//
// Model output is hostile: time is linear in the text (a delimiter that has no end is looked for once), nesting is limited,
// nothing is ever HTML, and links keep only web and mail addresses. Text that is cut in the middle is fine: a code block
// without its end runs to the end.
//
// Blocks: {type, source, ...}: p {spans}, h {level, spans}, code {language, text, open}, quote {blocks},
// list {ordered, start, items: [{blocks, checked}]}, table {align, head, rows}, hr. Equal sources are equal blocks.
// Spans: {type, ...}: text {text}, code {text}, strong / em / del {spans}, link {href, spans}, br.

const max_depth = 8;

export function parse(text, depth = 0) {
  return new Blocks(text.replace(/\r\n?/g, "\n").split("\n"), depth).all();
}

const fence = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const heading = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const rule = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const item = /^( {0,9})([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const quote = /^ {0,3}> ?/;
const row_line = /^\s*\|?[\s:|-]*-[\s:|-]*\|?\s*$/;

class Blocks {
  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
    this.at = 0;
    this.out = [];
  }

  all() {
    while (this.at < this.lines.length) {
      const begin = this.at;
      const block = this.one();
      if (block) this.out.push({ ...block, source: this.lines.slice(begin, this.at).join("\n") });
    }
    return this.out;
  }

  one() {
    const line = this.lines[this.at];
    if (!line.trim()) {
      ++this.at;
      return null;
    }
    const deep = this.depth < max_depth;
    if (fence.test(line)) return this.code();
    const title = heading.exec(line);
    if (title) {
      ++this.at;
      return { type: "h", level: title[1].length, spans: spans(title[2] ?? "") };
    }
    if (rule.test(line)) {
      ++this.at;
      return { type: "hr" };
    }
    if (deep && quote.test(line)) return this.quote();
    if (deep && item.test(line)) return this.list();
    if (line.includes("|") && row_line.test(this.lines[this.at + 1] ?? "")) return this.table();
    return this.paragraph();
  }

  code() {
    const [, indent, mark, language] = fence.exec(this.lines[this.at++]);
    const text = [];
    let open = true;
    for (; this.at < this.lines.length; ++this.at) {
      const end = fence.exec(this.lines[this.at]);
      if (end && end[2].startsWith(mark) && !end[3].trim()) {
        ++this.at;
        open = false;
        break;
      }
      let line = this.lines[this.at];
      for (let i = 0; i < indent.length && line.startsWith(" "); ++i) line = line.slice(1);
      text.push(line);
    }
    return { type: "code", language: language.trim().split(/\s/)[0].slice(0, 30), text: text.join("\n"), open };
  }

  quote() {
    const inner = [];
    while (this.at < this.lines.length && quote.test(this.lines[this.at])) inner.push(this.lines[this.at++].replace(quote, ""));
    return { type: "quote", blocks: parse(inner.join("\n"), this.depth + 1) };
  }

  list() {
    const first = item.exec(this.lines[this.at]);
    const ordered = /\d/.test(first[2]), base = first[1].length;
    const items = [];
    let inner = null, width = 0;
    const close = () => {
      if (!inner) return;
      const task = /^\[([ xX])\]\s+/.exec(inner[0]);
      if (task) inner[0] = inner[0].slice(task[0].length);
      items.push({ blocks: parse(inner.join("\n"), this.depth + 1), checked: task ? task[1] !== " " : undefined });
    };
    for (; this.at < this.lines.length; ++this.at) {
      const line = this.lines[this.at];
      const blank = !line.trim();
      const indent = line.length - line.trimStart().length;
      const begins = rule.test(line) ? null : item.exec(line);
      if (begins && indent <= base + 1 && indent < Math.max(width, base + 1) && /\d/.test(begins[2]) === ordered) {
        close();
        inner = [begins[4]];
        width = begins[1].length + begins[2].length + Math.min(begins[3].length || 1, 4);
      } else if (blank) {
        // A blank line stays inside only if what follows belongs to the item or is the next one.
        const next = this.lines[this.at + 1] ?? "";
        const following = item.exec(next);
        const inside = next.length - next.trimStart().length >= Math.min(width, base + 2) && next.trim();
        if (!inside && !(following && /\d/.test(following[2]) === ordered && following[1].length <= base + 1)) break;
        inner.push("");
      } else if (indent >= Math.min(width, base + 2)) {
        inner.push(line.slice(Math.min(indent, width)));
      } else if (inner.at(-1) !== "" && !fence.test(line) && !heading.test(line) && !begins && !rule.test(line)) {
        inner.push(line.trim());  // the paragraph goes on
      } else {
        break;
      }
    }
    close();
    return { type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items };
  }

  table() {
    const cells = (line) => {
      const parts = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1").split(/(?<!\\)\|/);
      return parts.map((part) => spans(part.trim().replace(/\\\|/g, "|")));
    };
    const head = cells(this.lines[this.at++]);
    const align = this.lines[this.at++].trim().replace(/^\||\|$/g, "").split("|").map((part) => {
      const mark = part.trim();
      return mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : "left";
    });
    const rows = [];
    while (this.at < this.lines.length && this.lines[this.at].includes("|")) rows.push(cells(this.lines[this.at++]).slice(0, head.length));
    return { type: "table", align, head, rows };
  }

  paragraph() {
    const text = [];
    do {
      text.push(this.lines[this.at++]);
    } while (this.at < this.lines.length && !this.interrupts(this.lines[this.at]));
    return { type: "p", spans: spans(text.map((line) => line.trim()).join("\n")) };
  }

  interrupts(line) {
    return !line.trim() || fence.test(line) || heading.test(line) || rule.test(line) ||
      (this.depth < max_depth && (quote.test(line) || item.test(line)));
  }
}

// ---- Inside a line -----------------------------------------------------------------------------------------------

const escapable = "\\`*_{}[]()#+-.!|~<>";
const pairs = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const address = /^(https?:\/\/|mailto:)[^\s<>"]+/i;
const word = /[\p{L}\p{N}]/u;

export function spans(text, depth = 0) {
  const out = [], found = new Map();
  let plain = "";
  const push = (span) => {
    if (plain) out.push({ type: "text", text: plain });
    plain = "";
    if (span) out.push(span);
  };
  // Where `mark` stands at or after `from`, or -1. The last answer is kept, so that the same stretch is not searched again.
  const end_of = (mark, from) => {
    const last = found.get(mark);
    if (last && from >= last.from && (last.at < 0 || from <= last.at)) return last.at;
    const at = text.indexOf(mark, from);
    found.set(mark, { from, at });
    return at;
  };

  for (let i = 0; i < text.length;) {
    const c = text[i];
    if (c === "\\" && i + 1 < text.length && escapable.includes(text[i + 1])) {
      plain += text[i + 1];
      i += 2;
    } else if (c === "\n") {
      push({ type: "br" });
      ++i;
    } else if (c === "`") {
      let ticks = 1;
      while (text[i + ticks] === "`") ++ticks;
      const mark = "`".repeat(ticks), end = end_of(mark, i + ticks);
      if (end < 0) {
        plain += mark;
        i += ticks;
      } else {
        const inner = text.slice(i + ticks, end).replace(/\n/g, " ");
        push({ type: "code", text: /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner });
        i = end + ticks;
      }
    } else if ((c === "[" || (c === "!" && text[i + 1] === "[")) && depth < max_depth) {
      const link = link_at(text, c === "!" ? i + 1 : i, end_of, depth);
      if (link) {
        push(link.span);  // a picture becomes a link: nothing is fetched
        i = link.end;
      } else {
        plain += c;
        ++i;
      }
    } else if ((c === "h" || c === "H") && !(i > 0 && word.test(text[i - 1])) && address.test(text.slice(i, i + 12))) {
      const href = address.exec(text.slice(i, i + 2000))[0].replace(/[.,;:!?'")\]*_]+$/, "");
      push({ type: "link", href, spans: [{ type: "text", text: href }] });
      i += href.length;
    } else {
      const pair = depth < max_depth && pairs.find(([mark]) => text.startsWith(mark, i));
      const end = pair ? emphasis_end(text, i, pair[0], end_of) : -1;
      if (end >= 0) {
        const [mark, type] = pair;
        push({ type, spans: spans(text.slice(i + mark.length, end), depth + 1) });
        i = end + mark.length;
      } else {
        const mark = pair ? pair[0] : c;
        plain += mark;
        i += mark.length;
      }
    }
  }
  push();
  return out;
}

// Where the emphasis that `mark` begins at `i` ends, or -1 if it begins none.
function emphasis_end(text, i, mark, end_of) {
  const after = text[i + mark.length];
  if (after === undefined || /\s/.test(after)) return -1;
  if (mark[0] === "_" && i > 0 && word.test(text[i - 1])) return -1;  // snake_case
  for (let end = end_of(mark, i + mark.length), tries = 0; end >= 0 && tries < 16; end = end_of(mark, end + 1), ++tries) {
    const touches = !/\s/.test(text[end - 1]) && end > i + mark.length;
    const doubled = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    const in_word = mark[0] === "_" && end + mark.length < text.length && word.test(text[end + mark.length]);
    if (touches && !doubled && !in_word) {
      while (mark.length === 2 && text[end + 2] === mark[0]) ++end;  // ***both***
      return end;
    }
  }
  return -1;
}

function link_at(text, i, end_of, depth) {
  const close = end_of("](", i + 1);
  if (close < 0 || close - i > 1000) return null;
  const end = end_of(")", close + 2);
  if (end < 0 || end - close > 2000) return null;
  const href = text.slice(close + 2, end).trim().split(/\s/)[0].replace(/^<|>$/g, "");
  if (!address.test(href)) return null;
  const label = text.slice(i + 1, close);
  return { span: { type: "link", href, spans: spans(label || href, depth + 2) }, end: end + 1 };
}
