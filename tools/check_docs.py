#!/usr/bin/env python3
"""What the Markdown pages name exists. Usage: tools/check_docs.py

Held here, for every *.md that git knows:
  a relative link leads to a file or folder, and its #part to a heading
  a path in backticks that begins with a folder of this tree (`src/...`, `tools/...`) exists; * stands for anything
  a source file that is named without its folder (`engine.h`) exists somewhere; in docs/history/ files may be gone
  no line is longer than 160 characters, but rows of tables and the list of rooms that a room is open to
Standard library only.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 160
TOPS = ("src/", "tests/", "tools/", "docs/", "bench/", "deploy/", "examples/", "models/", "cmake/", ".ci/")
SOURCE = re.compile(r"^\w[\w.\-]+\.(h|cpp|cu|cuh|py|sh|mjs|cmake)$")


def known_files():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(name for name in listed.stdout.split("\n") if name and (ROOT / name).exists())


def headings(path):
    """The names that links to parts of a page have."""
    found = set()
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("#"):
            words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(words.replace(" ", "-"))
    return found


class Checker:
    def __init__(self, files):
        self.files = files
        self.folders = {str(parent) for name in files for parent in pathlib.PurePath(name).parents}
        self.names = {pathlib.PurePath(name).name for name in files}
        self.faults = []

    def check_link(self, page, place, target):
        if re.match(r"[a-z]+:", target):
            return
        path, _, part = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists():
            self.faults.append(f"{place}: no such file: {target}")
        elif part and to.suffix == ".md" and part not in headings(to):
            self.faults.append(f"{place}: no such heading: {target}")

    def check_code(self, place, code, history):
        for word in re.split(r"[\s,;()]+", code):
            word = word.rstrip(".:")
            bare = word.rstrip("/")
            if word.startswith(TOPS) and not re.search(r"[<>{}$=]|NAME|DIR|FILE", word) and not history:
                hit = bare in self.files or bare in self.folders or fnmatch.filter(self.files, bare)
                hit = hit or "node_modules" in bare
                if not hit:
                    self.faults.append(f"{place}: no such path: {word}")
            elif SOURCE.match(word) and word not in self.names and not history:
                self.faults.append(f"{place}: no source of this name: {word}")

    def check_page(self, name):
        page = ROOT / name
        history = name.startswith("docs/history/")
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
            place = f"{name}:{number}"
            if len(line) > LONGEST and not line.startswith(("|", "Open to:")):
                self.faults.append(f"{place}: {len(line)} characters")
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                self.check_link(page, place, target)
            for code in re.findall(r"`([^`]+)`", line):
                self.check_code(place, code, history)


def main():
    checker = Checker(known_files())
    pages = [name for name in checker.files if name.endswith(".md")]
    for name in pages:
        checker.check_page(name)
    for fault in checker.faults:
        print(fault)
    print(f"docs: {len(pages)} pages, {len(checker.faults)} faults")
    sys.exit(1 if checker.faults else 0)


if __name__ == "__main__":
    main()
