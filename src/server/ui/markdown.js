// markdown.js -- the text of an answer as a tree of plain objects. The library markdown-it reads the Markdown; what it finds
// becomes blocks and spans here. No DOM: render.js makes elements of them.
//
// Model output is hostile: nothing is ever HTML, a picture becomes a link (nothing is fetched), links keep only web and mail
// addresses, nesting is limited. There are no reference definitions: so no text changes what stands before it, and an
// answer that grows is parsed piece by piece (Growing). Text that is cut in the middle is fine: a code block without its
// end runs to the end.
//
// Blocks: {type, source, ...}: p {spans}, h {level, spans}, code {language, text, open}, quote {blocks},
// list {ordered, start, items: [{blocks, checked}]}, table {align, head, rows}, hr. `source` only at the top; equal sources
// are equal blocks.
// Spans: {type, ...}: text {text}, code {text}, strong / em / del {spans}, link {href, spans}, br.
import MarkdownIt from "markdown-it";

const deepest_block = 36, deepest_span = 24;

const reader = new MarkdownIt({ html: false, breaks: true, linkify: true, maxNesting: 40 }).disable("reference");
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
reader.validateLink = (href) => /^(https?:\/\/|mailto:)[^\s<>"]+$/i.test(href);

// At its limit of nesting the library leaves out what follows. Before that, each line is a paragraph.
reader.block.ruler.before("table", "deepest", (state, line, _end, silent) => {
  if (state.level < deepest_block) return false;
  if (silent) return true;
  const map = [line, line + 1], put = (type, tag, nesting) => Object.assign(state.push(type, tag, nesting), { map });
  put("paragraph_open", "p", 1);
  Object.assign(put("inline", "", 0), { content: state.getLines(line, line + 1, state.blkIndent, false).trim(), children: [] });
  put("paragraph_close", "p", -1);
  state.line = line + 1;
  return true;
});

export function parse(text) {
  return blocks_of(text.replace(/\r\n?/g, "\n"));
}

export function spans(text) {
  return spans_of(reader.parseInline(text, {})[0].children);
}

// Of text with plain line ends; each block also has `begin`, its first line.
function blocks_of(text) {
  const lines = text.split("\n");
  return new Tree(reader.parse(text, {})).blocks(null).map((block) => {
    const [begin, end] = block.lines;
    delete block.lines;
    const source = lines.slice(begin, end).join("\n");
    return { ...block, begin, source: block.type === "code" ? source : source.trimEnd() };
  });
}

// ---- Text that grows ---------------------------------------------------------------------------------------------

// Reads a text again and again while it grows. Blocks that nothing can change any more are read once; of the rest, a block
// larger than `small` is read again only when it has grown by a tenth. So all that is read in the life of a text of n characters
// is at most about 20 n, besides `small` for each time it is asked for.
const small = 16384, growth = 0.1;

export class Growing {
  read_chars = 0;  // that the library was given, in all

  constructor() {
    this.restart();
  }

  restart() {
    this.text = "";
    this.kept = 0;         // blocks that are final,
    this.kept_chars = 0;   // and where they end
    this.rest = [];        // the blocks behind them,
    this.rest_chars = 0;   // read up to here
    this.forced = false;
  }

  // `whole`: nothing may be left unread. Gives {kept, blocks, pending}: the first `kept` blocks of the call before stay as they
  // are, `blocks` follow them, and `pending` is text at the end that was not read yet.
  update(text, whole = false) {
    text = text.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.text)) this.restart();
    this.text = text;
    if (whole ? this.rest_chars < text.length : this.due()) this.read();
    return { kept: this.kept, blocks: this.rest, pending: text.slice(this.rest_chars) };
  }

  due() {
    const unread = this.text.length - this.rest_chars, rest = this.rest_chars - this.kept_chars;
    if (unread === 0) return false;
    if (unread + rest <= small || unread > growth * rest) return true;
    // A code block seems to end: that is looked at at once, but once only for each time that it is due.
    if (this.forced || !/^ {0,3}(```|~~~)/m.test(this.text.slice(this.rest_chars))) return false;
    return (this.forced = true);
  }

  read() {
    // The blocks of the last reading that became final with it are on the page by now.
    const done = this.rest.filter((block) => block.final);
    this.kept += done.length;
    if (done.length > 0) this.kept_chars = done.at(-1).stop;
    const tail = this.text.slice(this.kept_chars);
    this.read_chars += tail.length;
    if (tail.length > (1 + growth) * (this.rest_chars - this.kept_chars)) this.forced = false;
    this.rest = blocks_of(tail);
    this.rest_chars = this.text.length;
    this.mark_final(tail);
  }

  // A block is final when another one follows that has two whole lines at least (the second makes the first a table's head, or a
  // title), or when it is code with its end in a whole line.
  mark_final(tail) {
    const starts = [0];
    for (let at = tail.indexOf("\n"); at >= 0; at = tail.indexOf("\n", at + 1)) starts.push(at + 1);
    const whole_lines = starts.length - 1;
    let last = this.rest.findLastIndex((block) => block.begin + 2 <= whole_lines);
    const block = this.rest[last];
    const ended = block?.type === "code" && block.open === false && last + 1 === this.rest.length && tail.endsWith("\n");
    if (!ended) --last;
    for (let i = 0; i <= last; ++i) {
      const next = this.rest[i + 1];
      Object.assign(this.rest[i], { final: true, stop: this.kept_chars + (next ? starts[next.begin] : tail.length) });
    }
  }
}

// ---- The library's tokens as a tree ------------------------------------------------------------------------------

class Tree {
  constructor(tokens) {
    this.tokens = tokens;
    this.at = 0;
  }

  // Up to the token of type `end`, which is taken too; null: to the end of all.
  blocks(end) {
    const out = [];
    for (;;) {
      const token = this.tokens[this.at++];
      if (!token || token.type === end) return out;
      const block = this.block(token);
      if (block) out.push({ ...block, lines: token.map });
    }
  }

  block(token) {
    switch (token.type) {
      case "heading_open":
        return { type: "h", level: Number(token.tag.slice(1)), spans: this.inline() };
      case "paragraph_open":
        return { type: "p", spans: this.inline() };
      case "blockquote_open":
        return { type: "quote", blocks: inner(this.blocks("blockquote_close")) };
      case "bullet_list_open":
      case "ordered_list_open":
        return this.list(token);
      case "table_open":
        return this.table();
      case "fence":
      case "code_block":
        return code(token);
      case "hr":
        return { type: "hr" };
      default:
        return null;
    }
  }

  // The one inline token of a heading, a paragraph or a cell, and its end.
  inline() {
    const token = this.tokens[this.at];
    this.at += 2;
    return spans_of(token.children);
  }

  list(token) {
    const ordered = token.type === "ordered_list_open", items = [];
    while (this.tokens[this.at++].type === "list_item_open") {
      const blocks = inner(this.blocks("list_item_close"));
      const first = blocks[0]?.type === "p" ? blocks[0].spans[0] : undefined;
      const task = first?.type === "text" ? /^\[([ xX])\]\s+/.exec(first.text) : null;
      if (task) first.text = first.text.slice(task[0].length);
      items.push({ blocks, checked: task ? task[1] !== " " : undefined });
    }
    return { type: "list", ordered, start: ordered ? Number(token.attrGet("start") ?? 1) : 1, items };
  }

  table() {
    const out = { type: "table", align: [], head: [], rows: [] };
    let row;
    for (;;) {
      const token = this.tokens[this.at++];
      if (token.type === "table_close") return out;
      if (token.type === "tr_open") row = [];
      if (token.type === "th_open") out.align.push(/center|right/.exec(token.attrGet("style") ?? "")?.[0] ?? "left");
      if (token.type === "th_open" || token.type === "td_open") row.push(this.inline());
      if (token.type === "tr_close") out.head.length ? out.rows.push(row) : (out.head = row);
    }
  }
}

function inner(blocks) {
  for (const block of blocks) delete block.lines;
  return blocks;
}

function code(token) {
  const text = token.content.replace(/\n$/, "");
  const language = token.info.trim().split(/\s/)[0].slice(0, 30);
  // Between its first and its last line an ended block has one line less than its lines are.
  const lines = token.content === "" ? 0 : text.split("\n").length;
  return { type: "code", language, text, open: token.type === "fence" && token.map[1] - token.map[0] < lines + 2 };
}

const marks = { strong_open: "strong", em_open: "em", s_open: "del" };

function spans_of(tokens) {
  const stack = [[]];
  const put = (span) => stack.at(-1).push(span);
  const text = (value) => {
    const last = stack.at(-1).at(-1);
    if (last?.type === "text") last.text += value;
    else if (value) put({ type: "text", text: value });
  };
  const open = (span) => {
    if (stack.length > deepest_span) return stack.push(stack.at(-1));  // its text goes on in the span around it
    put(span);
    stack.push(span.spans);
  };
  for (const token of tokens) {
    if (token.type === "text") text(token.content);
    else if (token.type === "softbreak" || token.type === "hardbreak") put({ type: "br" });
    else if (token.type === "code_inline") put({ type: "code", text: token.content });
    else if (token.type === "link_open") open({ type: "link", href: token.attrGet("href"), spans: [] });
    else if (token.type === "image") {
      const href = token.attrGet("src");
      put({ type: "link", href, spans: [{ type: "text", text: token.content || href }] });
    } else if (marks[token.type]) open({ type: marks[token.type], spans: [] });
    else if (token.nesting < 0) stack.pop();
  }
  return stack[0];
}
