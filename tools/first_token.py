#!/usr/bin/env python3
"""Time to the first token of a long prompt, as it is and compressed.

  braid serve -m model.gguf --prefill-drafter small.gguf
  tools/first_token.py http://127.0.0.1:8080 --tokens 32000,128000 --keep off,0.05

The prompt is made of random sentences and ends with a question. Each request has other
sentences, so that no prefix cache has them. --keep is the header x-braid-compression of the
request: "off", or the share to keep. --chars adapts the length to a tokenizer: the column
"prompt" has the tokens that the server counted, "read" those that its model got.
"""
import argparse
import json
import random
import sys
import time
import urllib.error
import urllib.request

WORDS = ("harbor ship salt clerk book cloth captain letter storm market bridge river winter lamp engine "
         "signal").split()
QUESTION = "What did the archivist forget?"


def text_of(chars, seed):
    source = random.Random(seed)
    sentences, size = [], 0
    while size < chars:
        words = [source.choice(WORDS) for _ in range(source.randint(6, 14))]
        sentences.append(" ".join(words).capitalize() + ".")
        size += len(sentences[-1]) + 1
    return " ".join(sentences) + "\n\n" + QUESTION


def first_token(url, text, keep, timeout):
    """Seconds, and usage."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url.rstrip("/") + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "x-braid-compression": keep})
    begin, first, usage = time.perf_counter(), None, {}
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                delta = choice.get("delta", {})
                says = delta.get("content") or delta.get("reasoning_content") or choice.get("finish_reason")
                if says and first is None:
                    first = time.perf_counter() - begin
    return first, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server, without /v1")
    parser.add_argument("--tokens", default="32000", help="lengths of prompts [default 32000]")
    parser.add_argument("--keep", default="off,0.05", help="what each length is asked with [default off,0.05]")
    parser.add_argument("--chars", type=float, default=4.5, help="characters of a token [default 4.5]")
    parser.add_argument("--repeat", type=int, default=2, help="requests of a kind; the best counts [default 2]")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds without a byte [default 3600]")
    options = parser.parse_args()
    print(f"{'tokens':>8} {'keep':>6} {'prompt':>8} {'read':>8} {'first s':>9} {'share':>7}")
    seed = 0
    for tokens in (int(n) for n in options.tokens.split(",")):
        whole = None
        for keep in options.keep.split(","):
            best, usage = None, {}
            for _ in range(options.repeat):
                seed += 1
                try:
                    first, usage = first_token(options.url, text_of(tokens * options.chars, seed), keep,
                                               options.timeout)
                except (OSError, urllib.error.URLError, ValueError) as error:
                    detail = error.read(400).decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
                    print(f"first_token: {error} {detail}", file=sys.stderr)
                    return 1
                if first is not None and (best is None or first < best):
                    best = first
            if best is None:
                print("first_token: an answer without a token", file=sys.stderr)
                return 1
            whole = whole or best
            prompt = usage.get("prompt_tokens", 0)
            read = usage.get("prompt_tokens_details", {}).get("compressed_tokens", prompt)
            print(f"{tokens:8} {keep:>6} {prompt:8} {read:8} {best:9.3f} {best / whole:7.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
