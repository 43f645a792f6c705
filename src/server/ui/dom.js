// dom.js -- the few helpers that every view uses. Text only ever becomes text nodes.

export const $ = (id) => document.getElementById(id);

// element("button", {className: "small", "aria-label": "Copy"}, "Copy"). Names with a dash become attributes.
export function element(tag, properties = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.includes("-") || name === "role" || name === "for") out.setAttribute(name, value);
    else out[name] = value;
  }
  out.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return out;
}

export function button(text, title, action, name = "small") {
  return element("button", { type: "button", className: name, textContent: text, title, onclick: action });
}

// For those who listen instead of looking.
export function say(text) {
  $("said").textContent = "";
  setTimeout(() => { $("said").textContent = text; }, 50);
}

// The clipboard API exists only where the browser trusts the origin; pages of other machines' http are not.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied");
}

export function copy_button(what, text) {
  const out = button("Copy", `Copy ${what}`, async () => {
    await copy(text());
    out.textContent = "Copied";
    setTimeout(() => { out.textContent = "Copy"; }, 1500);
  });
  return out;
}

// The text of `box`, of which the beginning is there already most of the time.
export function grow_text(box, text) {
  const there = box.firstChild;
  if (there && text.startsWith(there.data)) there.appendData(text.slice(there.length));
  else box.textContent = text;
}

// As tall as its text, up to a share of the window.
export function grow(area) {
  area.style.height = "auto";
  area.style.height = Math.min(area.scrollHeight + 2, innerHeight * 0.4) + "px";
}
