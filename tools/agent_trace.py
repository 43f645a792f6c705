#!/usr/bin/env python3
"""Plays the session of an agent against a server with the OpenAI API, and measures each turn.

  tools/agent_trace.py http://127.0.0.1:8080
  tools/agent_trace.py URL --turns 8 --tokens 16000 --json trace.json
  tools/agent_trace.py --compare http://127.0.0.1:8080 http://127.0.0.1:8081

A turn adds a tool call of the assistant and its result: a source file, a log or a
listing. What the server answers is measured and dropped, and the next turn has a text
of its own, so that every server reads the same messages. --seed changes them.

At the end come three questions about facts of old turns, each by itself after all
turns. A server that drops parts of a prompt may answer fewer of them.

Columns: prompt, cached and compressed tokens as the server counts them ("-": it does
not say), seconds to the first token, seconds to the end. The exit code is 0 whether
answers are right or not, 1 if a request failed, 2 for wrong options.
"""
import argparse
import json
import os
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request

MASK = (1 << 64) - 1

SYSTEM = ("You are a coding agent. You read files and logs with the tools, and answer "
          "questions about what you have read in one short sentence.")
TASK = "Find out why requests are slow after a restart. Read what you need, one file at a time."
TOOLS = [
    ("read_file", "Read a file of the repository", "path"),
    ("read_log", "Read the last lines of a log", "path"),
    ("list_folder", "List a folder with sizes and times", "path"),
]
MODULES = ("storage/compact_index", "net/session_pool", "core/merge_table", "runtime/worker_queue",
           "index/lookup_cache", "api/render_page", "tools/rotate_keys", "core/parse_header")
VERBS = ("load", "merge", "flush", "count", "close", "check", "split", "rotate", "parse", "find")
NOUNS = ("block", "entry", "session", "record", "table", "header", "worker", "cursor", "limit", "page")
SERVICES = ("gateway", "indexer", "billing", "scheduler", "storage")
LOG_TEXTS = ("request served", "cache entry evicted", "connection closed by peer", "retry after timeout",
             "checkpoint written", "queue drained", "lease renewed", "slow query")


class Stream:
    """SplitMix64, so that every version of Python gives the same texts."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n

    def pick(self, items):
        return items[self.below(len(items))]

    def digits(self, n):
        return str(1 + self.below(9)) + "".join(str(self.below(10)) for _ in range(n - 1))


def estimated_tokens(text):
    """About what byte-pair tokenizers count: short words and digits are a token each."""
    pieces = re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]+|\s{2,}", text)
    return sum(1 + (len(piece) - 1) // 7 for piece in pieces)


# ---- Results of tools: an endless list of lines each ------------------------------------------


def source_lines(stream):
    while True:
        verb, noun, other = stream.pick(VERBS), stream.pick(NOUNS), stream.pick(NOUNS)
        limit = 2 + stream.below(400)
        yield f"def {verb}_{noun}_{stream.below(1000)}({noun}, {other}s, limit={limit}):"
        yield f'    """Returns how many {other}s the {noun} has after the {verb}."""'
        yield f"    seen = {stream.below(90)}"
        yield f"    for {other} in {other}s[:limit]:"
        yield f"        if {other}.{stream.pick(NOUNS)} is None:"
        yield f"            {noun}.{stream.pick(VERBS)}({other}, {stream.below(1000)})"
        yield f"        seen += {noun}.{stream.pick(VERBS)}_{stream.pick(NOUNS)}({other})"
        yield "    return seen"
        yield ""


def log_lines(stream):
    clock_ms = stream.below(86_400_000)
    while True:
        clock_ms = (clock_ms + 1 + stream.below(4000)) % 86_400_000
        seconds = clock_ms // 1000
        yield (f"2031-05-04T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{clock_ms % 1000:03}Z "
               f"{stream.pick(('info', 'info', 'debug', 'warn'))} {stream.pick(SERVICES)} "
               f"{stream.pick(LOG_TEXTS)} id={stream.below(1 << 32):08x} took={stream.below(900)}ms")


def listing_lines(stream):
    while True:
        name = f"{stream.pick(VERBS)}_{stream.pick(NOUNS)}_{stream.below(1000)}"
        yield (f"-rw-r--r-- 1 build build {200 + stream.below(90000):6} May {1 + stream.below(28):2} "
               f"{stream.below(24):02}:{stream.below(60):02} {name}.{stream.pick(('py', 'c', 'h', 'json'))}")


KINDS = {
    "read_file": (source_lines, ".py"),
    "read_log": (log_lines, ".log"),
    "list_folder": (listing_lines, ""),
}


def draw_facts(stream, turns):
    """Of an early, a middle and a later turn: the turn, the tool, the line, the question, the answer."""
    port, session, size = stream.digits(7), f"{stream.below(1 << 48):012x}", stream.digits(8)
    return [
        (turns // 8, "read_file", f"COBALT_LIGHTHOUSE_LIMIT = {port}",
         "Which number is COBALT_LIGHTHOUSE_LIMIT set to?", port),
        (turns // 3, "read_log", f"2031-05-04T23:59:59.999Z error foundry session {session} lost its lease",
         "Which session of the foundry lost its lease?", session),
        (turns * 2 // 3, "list_folder", f"-rw-r--r-- 1 build build {size} May 31 23:59 amber_pavilion.img",
         "How many bytes has amber_pavilion.img?", size),
    ]


def message_of_call(number, tool, path, thought):
    return {"role": "assistant", "content": thought,
            "tool_calls": [{"id": f"call_{number}", "type": "function",
                            "function": {"name": tool, "arguments": json.dumps({"path": path})}}]}


def make_trace(turns, tokens, seed):
    """Messages of each turn, and (question, answer) pairs. The same for the same arguments."""
    stream = Stream(seed)
    facts = draw_facts(stream, turns)
    start = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    spent = sum(estimated_tokens(json.dumps(part)) for part in start + tools_field())
    steps = []
    for turn in range(turns):
        fact = next((f for f in facts if f[0] == turn), None)
        tool = fact[1] if fact else stream.pick(tuple(KINDS))
        lines, ending = KINDS[tool]
        path = f"{stream.pick(MODULES)}_{stream.below(100)}{ending}"
        call = message_of_call(turn, tool, path, f"Step {turn + 1}: I look at {path}.")
        spent += estimated_tokens(json.dumps(call))
        room = max(40, (tokens - spent) // (turns - turn))
        result, source = [], lines(stream)
        used = estimated_tokens(fact[2]) if fact else 0
        while used < room:
            result.append(next(source))
            used += estimated_tokens(result[-1]) + 1
        if fact:
            result.insert(len(result) // 2, fact[2])
        spent += used
        steps.append([call, {"role": "tool", "tool_call_id": f"call_{turn}", "content": "\n".join(result) + "\n"}])
    return start, steps, [(question, answer) for _, _, _, question, answer in facts]


def tools_field():
    return [{"type": "function",
             "function": {"name": name, "description": text,
                          "parameters": {"type": "object", "properties": {argument: {"type": "string"}},
                                         "required": [argument]}}} for name, text, argument in TOOLS]


# ---- The server -------------------------------------------------------------------------------


class Server:
    def __init__(self, url, args):
        self.base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self.args = args
        self.headers = {"Content-Type": "application/json"}
        key = os.environ.get("OPENAI_API_KEY", "")
        if args.api_key_file:
            key = pathlib.Path(args.api_key_file).read_text(encoding="utf-8").strip()
        if key:
            self.headers["Authorization"] = "Bearer " + key
        self.model = args.model or self.first_model()

    def open(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, headers=self.headers)
        return urllib.request.urlopen(request, timeout=self.args.timeout)

    def first_model(self):
        with self.open("/models") as response:
            return json.load(response)["data"][0]["id"]

    def ask(self, messages, max_tokens):
        """What a request took, and the text of its answer."""
        body = {"model": self.model, "messages": messages, "tools": tools_field(), "stream": True,
                "stream_options": {"include_usage": True}, "max_tokens": max_tokens, "temperature": 0}
        body.update(self.args.extra)
        usage, text, first = {}, "", None
        begin = time.monotonic()
        with self.open("/chat/completions", body) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                event = json.loads(data)
                if event.get("error"):
                    raise ValueError(event["error"].get("message", "the server reports an error"))
                usage = event.get("usage") or usage
                for choice in event.get("choices") or []:
                    delta = choice.get("delta") or {}
                    spoken = [delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")]
                    if first is None and any(spoken):
                        first = time.monotonic() - begin
                    text += delta.get("content") or ""
        total = time.monotonic() - begin
        details = usage.get("prompt_tokens_details") or {}
        return {"prompt_tokens": usage.get("prompt_tokens"), "cached_tokens": details.get("cached_tokens"),
                "compressed_tokens": details.get("compressed_tokens"),
                "first_token_s": total if first is None else first, "total_s": total}, text


# ---- The report -------------------------------------------------------------------------------

HEAD = f"{'turn':>8} {'prompt':>8} {'cached':>8} {'compr.':>8} {'first s':>9} {'total s':>9}"


def cell(value, width=8):
    return f"{'-' if value is None else value:>{width}}"


def row(name, figures):
    return (f"{name:>8} {cell(figures['prompt_tokens'])} {cell(figures['cached_tokens'])} "
            f"{cell(figures['compressed_tokens'])} {figures['first_token_s']:9.2f} {figures['total_s']:9.2f}")


def play(url, args):
    server = Server(url, args)
    start, steps, questions = make_trace(args.turns, args.tokens, args.seed)
    print(f"{url}: {server.model}, {args.turns} turns, seed {args.seed}\n{HEAD}", flush=True)
    messages, turns, answers = list(start), [], []
    for number, step in enumerate(steps, 1):
        messages += step
        figures, _ = server.ask(messages, args.max_tokens)
        turns.append({"turn": number, **figures})
        print(row(number, figures), flush=True)
    messages.append({"role": "assistant", "content": "I have read what I need."})
    for number, (question, wanted) in enumerate(questions, 1):
        asked = messages + [{"role": "user", "content": question}]
        figures, text = server.ask(asked, args.answer_tokens)
        answers.append({"question": question, "wanted": wanted, "answer": text, "right": wanted in text, **figures})
        print(row(f"ask {number}", figures) + ("  right" if wanted in text else "  wrong"), flush=True)
    prompt_s = sum(turn["first_token_s"] for turn in turns)
    right = sum(answer["right"] for answer in answers)
    print(f"to the first token, all turns: {prompt_s:.2f} s; right answers: {right} of {len(answers)}\n", flush=True)
    return {"url": url, "model": server.model, "prompt_s": prompt_s, "right": right, "turns": turns, "questions": answers}


def print_comparison(first, second):
    print(f"seconds to the first token\n{'turn':>8} {'first':>9} {'second':>9} {'times':>7}")
    pairs = [(turn["turn"], turn["first_token_s"], other["first_token_s"])
             for turn, other in zip(first["turns"], second["turns"])]
    pairs.append(("all", first["prompt_s"], second["prompt_s"]))
    for name, a, b in pairs:
        print(f"{name:>8} {a:9.2f} {b:9.2f} {a / max(b, 1e-9):7.2f}")
    print(f"right answers: {first['right']} and {second['right']} of {len(first['questions'])}")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="of the server, with or without /v1")
    parser.add_argument("--compare", nargs=2, metavar=("URL1", "URL2"), help="play it against two servers, one after the other")
    parser.add_argument("--turns", type=int, default=20, help="turns, at least 3 (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64000, help="about the tokens of the last turn (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=8, help="tokens of an answer to a turn (default: %(default)s)")
    parser.add_argument("--answer-tokens", type=int, default=64, help="tokens of an answer to a question (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="other texts and facts (default: %(default)s)")
    parser.add_argument("--model", help="default: the first of /v1/models")
    parser.add_argument("--api-key-file", metavar="FILE", help="file with the key (default: $OPENAI_API_KEY)")
    parser.add_argument("--extra", type=json.loads, default={}, metavar="JSON",
                        help='more fields of each request, as {"chat_template_kwargs": {"enable_thinking": false}}')
    parser.add_argument("--timeout", type=float, default=3600, help="seconds without a byte (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write all figures as JSON")
    parser.add_argument("--dump", action="store_true", help="print the messages as JSON and ask no server")
    args = parser.parse_args()
    if args.turns < 3 or args.tokens < 100 * args.turns:
        parser.error("there must be at least 3 turns, and 100 tokens for each")
    if not isinstance(args.extra, dict):
        parser.error("--extra is not a JSON object")
    if not args.dump and (args.url is None) == (args.compare is None):
        parser.error("give the URL of a server, or --compare with two")
    return args


def main():
    args = options()
    if args.dump:
        start, steps, questions = make_trace(args.turns, args.tokens, args.seed)
        messages = start + [message for step in steps for message in step]
        json.dump({"messages": messages, "questions": questions}, sys.stdout, indent=1)
        print()
        return 0
    try:
        runs = [play(url, args) for url in args.compare or [args.url]]
    except urllib.error.HTTPError as error:
        print(f"agent_trace: {error.url}: {error.code}: {error.read(2000).decode(errors='replace')}", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"agent_trace: {error}", file=sys.stderr)
        return 1
    if args.compare:
        print_comparison(*runs)
    if args.json:
        shape = {"turns": args.turns, "tokens": args.tokens, "seed": args.seed}
        pathlib.Path(args.json).write_text(json.dumps({**shape, "runs": runs}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
