#!/usr/bin/env python3
"""What the Markdown pages name exists. Usage: tools/check_docs.py

Held here, for every *.md that git knows:
  a relative link leads to a file or folder, and its #part to a heading
  a path in backticks that begins with a folder of this tree (`src/...`, `tools/...`) exists; * stands for anything
  a source file that is named without its folder (`engine.h`) exists somewhere
  no line is longer than 160 characters, but rows of tables and the list of rooms that a room is open to

Held for prose (README.md, the pages beside it and those of docs/, but not what a program writes there):
  a page has less than 20 words a sentence on average, and no sentence more than 35
  no line is longer than 100 characters, but rows of tables
  words that only the people who wrote the code understand do not come back (NOT_HERE)
  pages for users have no dates; docs/limits.md and docs/benchmarks.md may
Standard library only. `tools/check_docs.py --words` prints words and words a sentence of each page.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 160
TOPS = ("src/", "tests/", "tools/", "docs/", "bench/", "deploy/", "examples/", "models/", "cmake/", ".ci/")
# Prose: by its name, and not by these beginnings. The command line is described by the program itself.
PROSE = re.compile(r"^(docs/.*|[A-Z]+)\.md$")
NOT_PROSE = ("docs/reference/cli.md",)
CONTRIBUTORS = ("docs/design/", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
DATED = CONTRIBUTORS + ("docs/limits.md", "docs/benchmarks.md", "docs/replicas.md")
MEAN_WORDS = 20
MOST_WORDS = 35
PROSE_LINE = 100
# Words of the code, and what pages say instead. Design pages may use those of DESIGN_MAY, after an explanation.
NOT_HERE = {
    r"stock llama\.cpp": "upstream llama.cpp",
    r"guess(es|ing)?": "speculative token",
    r"ledger": "what speculation has cost",
    r"books": "accounts, budget",
    r"undisturbed step": "decoding step",
    r"near ties?": "tokens of almost equal probability",
    r"sealed|sealing": "quantized KV block",
    r"pushed out": "evicted, preempted",
    r"rooms?": "memory, space, or module",
    r"mended": "fixed",
    r"in the model's stead": "for the model",
    r"means? harm": "hostile",
    r"so (many|much) as": "up to",
}
DESIGN_MAY = {r"sealed|sealing", r"rooms?", r"near ties?"}
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


def prose(text):
    """Paragraphs and list items of a page, each as one text; without code, tables, headings and comments."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    blocks, current, fenced = [], [], False
    for line in text.split("\n"):
        bare = line.strip()
        if bare.startswith(("```", "~~~")):
            fenced = not fenced
            bare = ""
        elif fenced:
            continue
        in_list = bool(current) and current[0][1]
        code = line.startswith("    ") and not in_list
        item = re.match(r"(?:[*+-]|\d+\.) +(.*)", bare)
        if not bare or code or item or bare.startswith(("#", "|")):
            if current:
                blocks.append(" ".join(part for part, _ in current))
            current = []
        if item:
            current = [(item.group(1), True)]
        elif bare and not code and not bare.startswith(("#", "|")):
            current.append((bare.lstrip("> "), in_list))
    if current:
        blocks.append(" ".join(part for part, _ in current))
    return blocks


def sentences(block):
    """Sentences of a text, each as its words. Code in backticks counts as one word, a link as what is shown of it."""
    block = re.sub(r"`[^`]+`", "Code", block)
    block = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", block)
    block = re.sub(r"[*_]{1,2}(\S[^*_]*)[*_]{1,2}", r"\1", block)
    block = re.sub(r"\b(e\.g|i\.e|etc|vs)\.", r"\1", block)
    parts = re.split(r"(?<=[.!?])[)\"']*\s+(?=[A-Z0-9(\"'])", block)
    return [words for words in (re.findall(r"[^\s]*\w[^\s]*", part) for part in parts) if words]


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

    def check_code(self, place, code):
        for word in re.split(r"[\s,;()]+", code):
            word = word.rstrip(".:")
            bare = word.rstrip("/")
            if word.startswith(TOPS) and not re.search(r"[<>{}$=]|NAME|DIR|FILE", word):
                hit = bare in self.files or bare in self.folders or fnmatch.filter(self.files, bare)
                hit = hit or "node_modules" in bare
                if not hit:
                    self.faults.append(f"{place}: no such path: {word}")
            elif SOURCE.match(word) and word not in self.names:
                self.faults.append(f"{place}: no source of this name: {word}")

    def check_prose(self, name):
        """Lengths and words of a page for people. Returns its words and its mean."""
        text = (ROOT / name).read_text(encoding="utf-8")
        found = [words for block in prose(text) for words in sentences(block)]
        total = sum(map(len, found))
        mean = total / max(1, len(found))
        if mean >= MEAN_WORDS:
            self.faults.append(f"{name}: {mean:.1f} words a sentence")
        for words in found:
            if len(words) > MOST_WORDS:
                self.faults.append(f"{name}: a sentence of {len(words)} words: {' '.join(words[:8])} ...")
        fenced = generated = False
        for number, line in enumerate(text.split("\n"), 1):
            place = f"{name}:{number}"
            fenced ^= line.strip().startswith("```")
            if re.match(r"<!-- [\w:. -]+ -->", line):  # what a program writes has words of its own
                generated = not line.startswith("<!-- end")
            if len(line) > PROSE_LINE and not line.startswith("|"):
                self.faults.append(f"{place}: {len(line)} characters")
            if not fenced and not generated and not line.startswith("    "):
                shown = re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)
                for word, better in NOT_HERE.items():
                    if name.startswith(CONTRIBUTORS) and word in DESIGN_MAY:
                        continue
                    if name == "ARCHITECTURE.md" and line.startswith("|"):  # the glossary names old words
                        continue
                    hit = re.search(rf"\b({word})\b", shown, re.I)
                    if hit:
                        self.faults.append(f"{place}: \"{hit.group(0)}\" (rather: {better})")
                if not name.startswith(DATED) and re.search(r"\b20\d\d-\d\d-\d\d\b", shown):
                    self.faults.append(f"{place}: a date")
        return total, mean

    def check_page(self, name):
        page = ROOT / name
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
            place = f"{name}:{number}"
            if len(line) > LONGEST and not line.startswith(("|", "Open to:")) and name not in NOT_PROSE:
                self.faults.append(f"{place}: {len(line)} characters")
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                self.check_link(page, place, target)
            for code in re.findall(r"`([^`]+)`", line):
                self.check_code(place, code)


def main():
    checker = Checker(known_files())
    pages = [name for name in checker.files if name.endswith(".md")]
    for name in pages:
        checker.check_page(name)
    for name in pages:
        if PROSE.match(name) and not name.startswith(NOT_PROSE):
            words, mean = checker.check_prose(name)
            if "--words" in sys.argv[1:]:
                print(f"{name}: {words} words, {mean:.1f} a sentence")
    for fault in checker.faults:
        print(fault)
    print(f"docs: {len(pages)} pages, {len(checker.faults)} faults")
    sys.exit(1 if checker.faults else 0)


if __name__ == "__main__":
    main()
