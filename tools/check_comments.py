#!/usr/bin/env python3
"""Comments of C++ and CUDA sources are plain English. Usage: tools/check_comments.py [--count]

Held here:
  a line that is a comment has at most 100 characters
  a sentence has at most 35 words
  words that only the people who wrote the code understand do not come back (NOT_HERE)
  no dates: what a day measured belongs in the commit message
--count prints the lines of comments of each layer. Standard library only.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_COLUMNS = 100
MOST_WORDS = 35
NOT_HERE = (r"whoever", r"nobody('s)?", r"somebody('s)?", r"in vain", r"is told", r"goodbye", r"astray", r"ledger", r"rehearsed",
            r"spoken for", r"gives? way", r"undisturbed", r"stock llama\.cpp", r"what is no", r"that is none", r"who is no",
            r"evening", r"afternoon", r"so many as", r"so much as")
BANNED = re.compile(r"\b(" + "|".join(NOT_HERE) + r")\b", re.I)
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
COMMENT = re.compile(r"^\s*//(.*)$")


def sources():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cpp", "*.cu", "*.cuh"], cwd=ROOT,
                            capture_output=True, text=True, check=True)
    return sorted(name for name in listed.stdout.split("\n") if name and (ROOT / name).exists())


def blocks(lines):
    """Runs of comment lines, each with the number of its first line; a list item or a table row begins a new one."""
    current, first = [], 0
    for number, line in enumerate(lines + [""], 1):
        found = COMMENT.match(line)
        text = found.group(1) if found else None
        if text is not None and (not current or not re.match(r"\s*([-*] |\d+\. |$)|   |.*  +\S", text)):
            if not current:
                first = number
            current.append(text.strip())
            continue
        if current:
            yield first, " ".join(current)
        current, first = ([text.strip()] if text is not None and text.strip() else []), number


def main():
    faults, counts = [], {}
    for name in sources():
        lines = (ROOT / name).read_text(encoding="utf-8").split("\n")
        layer = "/".join(name.split("/")[:2]) if name.startswith("src/") else name.split("/")[0]
        for number, line in enumerate(lines, 1):
            if not COMMENT.match(line):
                continue
            counts[layer] = counts.get(layer, 0) + 1
            place = f"{name}:{number}"
            if len(line) > MOST_COLUMNS:
                faults.append(f"{place}: {len(line)} characters")
            hit = BANNED.search(line) or DATE.search(line)
            if hit:
                faults.append(f"{place}: \"{hit.group(0)}\"")
        for number, text in blocks(lines):
            for sentence in re.split(r"(?<=[.!?:;])\s+", text):
                words = re.findall(r"[A-Za-z][\w'-]*", sentence)
                if len(words) > MOST_WORDS:
                    faults.append(f"{name}:{number}: a sentence of {len(words)} words: {' '.join(words[:8])} ...")
    for fault in faults:
        print(fault)
    if "--count" in sys.argv[1:]:
        for layer, count in sorted(counts.items()):
            print(f"{count:6} {layer}")
    print(f"comments: {sum(counts.values())} lines, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
