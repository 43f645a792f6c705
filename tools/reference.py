#!/usr/bin/env python3
"""Writes what the program says about itself into docs/reference/. Usage: tools/reference.py BRAID

Each page has a part between <!-- begin: braid docs NAME --> and <!-- end: braid docs NAME -->, which is the output of that command.
tests/docs_test.cpp compares. Standard library only.
"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name in ("cli", "api", "metrics", "errors"):
        text = subprocess.run([sys.argv[1], "docs", name], capture_output=True, text=True, check=True).stdout
        page = ROOT / "docs" / "reference" / f"{name}.md"
        begin, end = f"<!-- begin: braid docs {name} -->\n", f"<!-- end: braid docs {name} -->"
        old = page.read_text(encoding="utf-8")
        head, marked, rest = old.partition(begin)
        _, ended, tail = rest.partition(end)
        if not marked or not ended:
            sys.exit(f"{page}: has no part for `braid docs {name}`")
        page.write_text(head + begin + text + end + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
