#!/usr/bin/env python3
"""Tables and plots of docs/benchmarks.md from docs/benchmarks/*.json.

Usage: tools/plot_benchmarks.py [--check]     --check: change nothing, fail if page, plots and data disagree

Each JSON file is one machine: what it is, its peers, and tables. A table is of one of three kinds:
  peers    rows {group, test, braid, peers: {name: figure}, mark}; `braid` may be a list of rounds, whose mean is shown
  grid     columns, and rows of texts
  summary  rows {what, table, group, test}: rows of peers tables, whose figures stand in those alone
The page has a pair of comments for each table, `<!-- table NAME -->` and `<!-- end NAME -->`; what stands between them is written here:
the caption, which every table has and which says whose weights were run, the table, the commands under it, and the plot if the table
has one (docs/benchmarks/NAME.svg). Ratios are computed from the figures that are shown. Plots have a light background of their own,
so that they read on dark pages, too. Standard library only.
"""
import json
import math
import pathlib
import re
import sys
import textwrap
from html import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
DATA = ROOT / "docs" / "benchmarks"
WIDTH = 100

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"
BRAID, BRAID2, PEER, PEER2 = "#0969da", "#8250df", "#8c959f", "#bf8700"


def shown(figure):
    """A figure as the page writes it: 41.9, 1,930; of several rounds their mean."""
    return f"{round(mean(figure)):,}" if isinstance(figure, list) else f"{figure:,}"


def mean(figure):
    return sum(figure) / len(figure) if isinstance(figure, list) else figure


# ---- Tables ----------------------------------------------------------------------------------------------


def peers_table(table, machine):
    used = [name for name in machine["peers"] if any(name in row.get("peers", {}) for row in table["rows"])]
    head = ["", "test", "braid, " + table["unit"]] + [machine["peers"][name] for name in used]
    head += [f"times {machine['peers'][name]}" for name in used]
    rows, last = [], None
    for row in table["rows"]:
        cells = [row["group"] if row["group"] != last else "", row["test"] + row.get("mark", ""), shown(row["braid"])]
        last = row["group"]
        cells += [shown(row["peers"][name]) if name in row.get("peers", {}) else "" for name in used]
        for name in used:
            cells.append(f"{mean(row['braid']) / row['peers'][name]:.2f}" if name in row.get("peers", {}) else "")
        rows.append(cells)
    numbers = len(head) - 2
    return table_lines(head, ["---", "---"] + ["---:"] * numbers, rows)


def summary_table(table, machine, machines):
    """A row of each machine's tables that this one names, against the first peer."""
    peer = next(iter(machine["peers"]))
    head = ["machine", "model", "test", "braid", machine["peers"][peer], "times"]
    rows = []
    for wanted_row in table["rows"]:
        for other in machines:
            for of in other["tables"]:
                for row in of["rows"] if of["name"] == wanted_row["table"] else []:
                    if row["group"] == wanted_row["group"] and row["test"] == wanted_row["test"]:
                        ratio = f"{mean(row['braid']) / row['peers'][peer]:.1f}"
                        figures = [shown(row["braid"]), shown(row["peers"][peer]), ratio]
                        rows.append([other["machine"], wanted_row["what"], row["test"], *figures])
    if len(rows) != len(table["rows"]):
        sys.exit(f"{table['name']}: a row names no row of another table, or several")
    return table_lines(head, ["---"] * 3 + ["---:"] * 3, rows)


def table_lines(head, rules, rows):
    return ["| " + " | ".join(cells) + " |" for cells in [head, rules] + rows]


def command_lines(command):
    """In lines of a page's width, as a shell reads them."""
    lines = textwrap.wrap(command, WIDTH - 2, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False)
    return [line + " \\" for line in lines[:-1]] + lines[-1:]


def section(table, machine, machines):
    lines = [table["caption"], ""]
    if table["kind"] == "peers":
        lines += peers_table(table, machine)
    elif table["kind"] == "summary":
        lines += summary_table(table, machine, machines)
    else:
        lines += table_lines(table["columns"], ["---"] * len(table["columns"]), table["rows"])
    if "command" in table:
        lines += [""] + [line for command in table["command"] for line in command_lines(command)]
    if "plot" in table:
        lines += ["", f"![{table['plot']['title']}](benchmarks/{table['name']}.svg)"]
    return "\n".join(lines)


# ---- Plots -----------------------------------------------------------------------------------------------


def svg(width, height, title, body):
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
            f' font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
            text(16, 26, title, INK, size=15, bold=True),
            *body,
            "</svg>",
            "",
        ]
    )


def text(x, y, words, fill=INK, anchor="start", size=12, bold=False):
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}"{weight}>{escape(words)}</text>'


def line(x1, y1, x2, y2, stroke=GRID, width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"/>'


def ratios_plot(table, machine):
    """A bar for each row: braid's figure as a multiple of the first peer's; the others are ticks."""
    first, *others = machine["peers"]
    rows = [row for row in table["rows"] if first in row.get("peers", {})]
    left, right, top, step = 166, 116, 62, 22
    width, height = 760, top + step * len(rows) + 34
    most = math.ceil(max(mean(row["braid"]) / row["peers"][first] for row in rows))
    scale = (width - left - right) / most
    body = [text(16, 46, f"bar: braid, times {machine['peers'][first]}", MUTED)]
    if others:
        body.append(f'<rect x="262" y="36" width="3" height="13" fill="{PEER2}"/>')
        body.append(text(271, 46, machine["peers"][others[0]], MUTED))
    bottom = top + step * len(rows)
    for times in range(most + 1):
        x = left + times * scale
        body.append(line(x, top - 4, x, bottom, INK if times == 1 else GRID, 1))
        body.append(text(x, bottom + 16, f"{times}x" if times != 1 else f"1x = {first}", MUTED, "middle", 11))
    last = None
    for number, row in enumerate(rows):
        y = top + number * step
        ratio = mean(row["braid"]) / row["peers"][first]
        if row["group"] != last:
            body.append(text(16, y + 14, row["group"], bold=True))
            last = row["group"]
        body.append(text(left - 8, y + 14, row["test"], MUTED, "end"))
        body.append(f'<rect x="{left}" y="{y + 2}" width="{ratio * scale:.1f}" height="{step - 6}" rx="2" fill="{BRAID}"/>')
        for name in others:
            if name in row["peers"]:
                x = left + row["peers"][name] / row["peers"][first] * scale
                body.append(f'<rect x="{x - 1.5:.1f}" y="{y}" width="3" height="{step - 2}" fill="{PEER2}"/>')
        body.append(text(left + ratio * scale + 6, y + 14, f"{ratio:.1f}x, {shown(row['braid'])} {table['unit']}"))
    return svg(width, height, table["plot"]["title"], body)


def lines_plot(table, machine):
    """Rows that have an x, a line for each group and each peer of it; both axes are logarithmic."""
    rows = [row for row in table["rows"] if "x" in row]
    series = []
    for group, colour in zip(dict.fromkeys(row["group"] for row in rows), (BRAID, BRAID2)):
        of = [row for row in rows if row["group"] == group]
        series.append((f"{group}, braid", colour, "", [(row["x"], mean(row["braid"]), shown_mean(row["braid"])) for row in of]))
        for name in machine["peers"]:
            points = [(row["x"], row["peers"][name], shown(row["peers"][name])) for row in of if name in row.get("peers", {})]
            if points:
                series.append((f"{group}, {name}", colour, ' stroke-dasharray="5 4"', points))
    left, right, top, bottom, width, height = 76, 150, 56, 44, 760, 400
    xs = sorted({x for *_, points in series for x, _, _ in points})
    values = [value for *_, points in series for _, value, _ in points]
    steps = [step * 10**power for power in range(9) for step in (1, 2, 5)]
    steps = [step for step in steps if max(s for s in steps if s <= min(values)) <= step <= min(s for s in steps if s >= max(values))]
    low, high = math.log10(steps[0]), math.log10(steps[-1])

    def place(x, value):
        across = (math.log2(x) - math.log2(xs[0])) / (math.log2(xs[-1]) - math.log2(xs[0]))
        up = (math.log10(value) - low) / (high - low)
        return left + across * (width - left - right), height - bottom - up * (height - top - bottom)

    body = []
    for x in xs:
        at = place(x, 10**low)[0]
        body += [line(at, top, at, height - bottom), text(at, height - bottom + 18, str(x), MUTED, "middle")]
    body.append(text((left + width - right) / 2, height - 8, "sequences at the same time", MUTED, "middle"))
    for step in steps:
        at = place(xs[0], step)[1]
        body += [line(left, at, width - right, at), text(left - 18, at + 4, f"{step:,}", MUTED, "end")]
    taken = [(at, up, 5, 5) for *_, points in series for at, up in (place(x, value) for x, value, _ in points)]

    def free(box):
        return all(abs(box[0] - other[0]) >= box[2] + other[2] or abs(box[1] - other[1]) >= box[3] + other[3] for other in taken)

    for name, colour, dash, points in series:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(x, value) for x, value, _ in points))
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for x, value, label in points:
            at, up = place(x, value)
            body.append(f'<circle cx="{at:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>')
            # Above a full line, below a dashed one, where that is free.
            places = [(at, up + offset, 3.5 * len(label), 6) for offset in ((12, -12) if dash else (-12, 12))]
            box = next((box for box in places if free(box)), places[0])
            taken.append(box)
            body.append(text(at, box[1] + 4, label, colour, "middle", 11))
        at, up = place(*points[-1][:2])
        body.append(text(at + 26, up + 4, name, colour, bold=not dash))
    return svg(width, height, table["plot"]["title"], body)


def shown_mean(figure):
    value = mean(figure)
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


PLOTS = {"ratios": ratios_plot, "lines": lines_plot}


# ---- Files -----------------------------------------------------------------------------------------------


def wanted():
    """What page and plots must hold: path -> text."""
    files, page = {}, PAGE.read_text(encoding="utf-8")
    names = set()
    paths = sorted(DATA.glob("*.json"))
    machines = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for path, machine in zip(paths, machines):
        for table in machine["tables"]:
            name = table["name"]
            names.add(name)
            marked = re.compile(rf"(<!-- table {re.escape(name)} -->\n)(?:.*?\n)??(<!-- end {re.escape(name)} -->)", re.S)
            if not marked.search(page):
                sys.exit(f"{path.name}: {PAGE.name} has no place for the table {name}")
            page = marked.sub(lambda found: found[1] + section(table, machine, machines) + "\n" + found[2], page)
            if "plot" in table:
                files[DATA / f"{name}.svg"] = PLOTS[table["plot"]["kind"]](table, machine)
    for name in re.findall(r"<!-- table (.*?) -->", page):
        if name not in names:
            sys.exit(f"{PAGE.name}: no data for the table {name}")
    files[PAGE] = page
    return files


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    stale = []
    for path, content in wanted().items():
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(content, encoding="utf-8")
    if check and stale:
        sys.exit("not as the data says (make docs): " + ", ".join(stale))
    print("benchmarks: " + (", ".join(stale) + " written" if stale else "page, plots and data agree"))


if __name__ == "__main__":
    main()
