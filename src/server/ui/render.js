// render.js -- Markdown blocks as elements. While an answer grows, only blocks whose source changed are made anew, so that a
// selection, a scroll position or a focused button in an earlier block survives. Text of a large block that is not read yet
// (Growing) stands behind it as it is.
import { copy_button, element } from "./dom.js";
import { Growing } from "./markdown.js";

// `whole`: the text will not grow.
export function render(box, text, whole) {
  box.reader ??= new Growing();
  const { kept, blocks, pending } = box.reader.update(text, whole);
  let at = box.children[kept] ?? null;
  for (const block of blocks) {
    if (at && at.source === block.source) {
      at = at.nextElementSibling;
      continue;
    }
    const made = block_element(block), next = at?.nextElementSibling ?? null;
    made.source = block.source;
    if (at) at.replaceWith(made);
    else box.append(made);
    at = next;
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
  const last = box.lastElementChild;
  if (last?.unread) last.unread.data = pending;
  else if (pending) box.append(element("p", { className: "unread", textContent: pending }));
}

function block_element(block) {
  switch (block.type) {
    case "h":  // the page's own headings are h1 and h2
      return element("h" + Math.min(6, block.level + 2), {}, ...inline(block.spans));
    case "hr":
      return element("hr");
    case "code":
      return code_element(block);
    case "quote":
      return element("blockquote", {}, ...block.blocks.map(block_element));
    case "list":
      return element(block.ordered ? "ol" : "ul", block.ordered ? { start: block.start } : {}, ...block.items.map(item_element));
    case "table":
      return table_element(block);
    default:
      return element("p", {}, ...inline(block.spans));
  }
}

function item_element({ blocks, checked }) {
  const task = checked === undefined ? [] : [checked ? "☑ " : "☐ "];
  const tight = blocks.length > 0 && blocks[0].type === "p";
  return element("li", {}, ...task, ...(tight ? inline(blocks[0].spans) : []), ...blocks.slice(tight ? 1 : 0).map(block_element));
}

function code_element({ language, text, open }) {
  const name = language ? `${language} code` : "code", unread = open ? new Text() : null;
  const out = element("figure", { className: "code" },
    element("figcaption", {}, element("span", { textContent: language || "text" }), copy_button("this code", () => text + (unread?.data ?? ""))),
    element("pre", { tabIndex: 0, role: "region", "aria-label": name }, element("code", {}, text, unread)));
  out.unread = unread;
  return out;
}

function table_element({ align, head, rows }) {
  const cell = (tag, spans, i) => {
    const out = element(tag, {}, ...inline(spans));
    if (tag === "th") out.scope = "col";
    if (align[i] && align[i] !== "left") out.className = align[i];
    return out;
  };
  return element("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((spans, i) => cell("th", spans, i)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((spans, i) => cell("td", spans, i)))))));
}

function inline(spans) {
  return spans.map((span) => {
    switch (span.type) {
      case "text":
        return span.text;
      case "br":
        return element("br");
      case "code":
        return element("code", { textContent: span.text });
      case "link":
        return element("a", { href: span.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...inline(span.spans));
      default:
        return element(span.type, {}, ...inline(span.spans));
    }
  });
}
