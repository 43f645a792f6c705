#!/usr/bin/env python3
"""Checks that `braid proxy` changes nothing of what a server answers, before any server with
the OpenAI API.

  braid proxy --upstream http://127.0.0.1:8080 --port 8081 --prefill-compression auto
  tools/proxy_check.py http://127.0.0.1:8080 http://127.0.0.1:8081

Each request goes to the server and then through the proxy. Answers are compared without
what differs from answer to answer (ids, times). Sampling is greedy. Requests that the
server does not know are compared as well: its errors must arrive unchanged.

The exit code is 0 if all checks passed, 1 if not, 2 for wrong options.
"""
import argparse
import concurrent.futures
import http.client
import json
import socket
import sys
import time
import urllib.parse

VARYING = ("id", "created", "created_at", "timings", "prompt_progress", "system_fingerprint",
           "tool_call_id", "item_id", "sequence_number", "completed_at", "queue_ms", "seed")
WORDS = ("The harbor was quiet. A ship came in with salt and cloth. The clerk wrote its name in the "
         "book. ")


class Place:
    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port, self.path = parts.hostname, parts.port or 80, parts.path.rstrip("/")

    def ask(self, method, path, body=None, headers=None, timeout=300):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        send = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, self.path + path, payload, send if payload is not None else headers or {})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, dict((k.lower(), v) for k, v in answer.getheaders()), data


def constant(value):
    """A JSON value without what differs from answer to answer."""
    if isinstance(value, dict):
        return {k: constant(v) for k, v in value.items() if k not in VARYING}
    if isinstance(value, list):
        return [constant(v) for v in value]
    return value


def content_of(data, kind):
    """What two answers are compared by: JSON, the events of a stream, or bytes."""
    if kind.startswith("text/event-stream"):
        events = []
        for line in data.decode().splitlines():
            if line.startswith("data:"):
                text = line[5:].strip()
                events.append(text if text == "[DONE]" else constant(json.loads(text)))
            elif line.startswith("event:"):
                events.append(line)
        return events
    if kind.startswith("application/json"):
        return constant(json.loads(data))
    return data


def chat(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 24,
            "temperature": 0, "seed": 1, **more}


TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}

CASES = [
    ("models", "GET", "/v1/models", None),
    ("health", "GET", "/health", None),
    ("unknown path", "GET", "/v1/nothing", None),
    ("chat", "POST", "/v1/chat/completions", chat("Tell me about the harbor.")),
    ("chat stream", "POST", "/v1/chat/completions",
     chat("Tell me about the harbor.", stream=True, stream_options={"include_usage": True})),
    ("chat n=2", "POST", "/v1/chat/completions", chat("Tell me about the harbor.", n=2)),
    ("completion", "POST", "/v1/completions",
     {"model": "m", "prompt": WORDS, "max_tokens": 16, "temperature": 0}),
    ("completion stream", "POST", "/v1/completions",
     {"model": "m", "prompt": WORDS, "max_tokens": 16, "temperature": 0, "stream": True}),
    ("tools", "POST", "/v1/chat/completions", chat("Weather in Lisbon?", tools=[TOOL])),
    ("tools, required, stream", "POST", "/v1/chat/completions",
     chat("Weather in Lisbon?", tools=[TOOL], tool_choice="required", stream=True)),
    ("schema", "POST", "/v1/chat/completions", chat("A city as JSON.", response_format={
        "type": "json_schema", "json_schema": {"name": "c", "schema": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}})),
    ("logprobs", "POST", "/v1/chat/completions", chat("Hello.", logprobs=True, top_logprobs=2)),
    ("Anthropic", "POST", "/v1/messages", chat("Tell me about the harbor.")),
    ("Anthropic stream", "POST", "/v1/messages", chat("Tell me about the harbor.", stream=True)),
    ("no JSON", "POST", "/v1/chat/completions", b"{\"messages\": [oops"),
    ("no messages", "POST", "/v1/chat/completions", {"model": "m"}),
    ("wrong role", "POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": 5}]}),
    ("too long", "POST", "/v1/chat/completions", chat(WORDS * 20000)),
]


class Checks:
    def __init__(self):
        self.failed = 0

    def report(self, name, fault, note=""):
        self.failed += bool(fault)
        print(f"{'FAILED' if fault else 'ok':7} {name}{': ' + (fault or note) if fault or note else ''}",
              flush=True)


def compare(checks, server, proxy, name, method, path, body):
    # The first request fills the server's prefix cache; counts of cached tokens agree after it.
    if method == "POST":
        server.ask(method, path, body)
    status, headers, data = server.ask(method, path, body)
    status2, headers2, data2 = proxy.ask(method, path, body, {"x-braid-compression": "off"})
    kind, kind2 = headers.get("content-type", ""), headers2.get("content-type", "")
    fault = ""
    if status != status2:
        fault = f"status {status2} in place of {status}"
    elif kind != kind2:
        fault = f"content type {kind2} in place of {kind}"
    elif content_of(data, kind) != content_of(data2, kind2):
        fault = f"another body:\n  {data[:400]}\n  {data2[:400]}"
    checks.report(name, fault, f"{status}, {len(data2)} bytes")


def busy(server):
    status, _, data = server.ask("GET", "/slots")
    if status != 200:
        return None
    slots = json.loads(data)
    return sum(bool(s.get("is_processing")) for s in slots) if isinstance(slots, list) else None


def disconnect(checks, server, proxy):
    body = json.dumps(chat("Count.", stream=True, max_tokens=2000, ignore_eos=True)).encode()
    connection = socket.create_connection((proxy.host, proxy.port), 60)
    connection.sendall(b"POST %s/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                       b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                       % (proxy.path.encode(), len(body)) + body)
    first = b""
    while b"data:" not in first:
        more = connection.recv(4096)
        if not more:
            checks.report("disconnect", f"the stream ended before its first event: {first[:200]}")
            return
        first += more
    during = busy(server)
    connection.close()
    end = time.time() + 30
    while busy(server) and time.time() < end:
        time.sleep(0.1)
    after = busy(server)
    if during is None:
        checks.report("disconnect", "", "not checked, as the server has no /slots")
        return
    fault = "" if after == 0 and during else f"{during} busy slots during the stream, {after} after it"
    checks.report("disconnect ends the server's work", fault, f"{during} busy, then {after}")


def streams(checks, proxy, count):
    def one(i):
        body = chat(f"Story number {i}.", stream=True, max_tokens=32, ignore_eos=True,
                    stream_options={"include_usage": True})
        status, headers, data = proxy.ask("POST", "/v1/chat/completions", body, timeout=900)
        if status != 200:
            return f"status {status}: {data[:200]}"
        events = content_of(data, headers["content-type"])
        if events[-1] != "[DONE]":
            return "no [DONE]"
        finished = [c["finish_reason"] for e in events[:-1] for c in e.get("choices", []) if c.get("finish_reason")]
        usage = [e["usage"] for e in events[:-1] if e.get("usage")]
        if finished != ["length"] or not usage or usage[-1]["completion_tokens"] != 32:
            return f"finish {finished}, usage {usage}"
        return ""

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        faults = [f for f in pool.map(one, range(count)) if f]
    checks.report(f"{count} streams at once", f"{len(faults)} of them: {faults[0]}" if faults else "")


def compressed(checks, proxy, tokens):
    text = " ".join(f"Entry {i}: the {a} of ship {i * 7919 % 100003} was {b}." for i, (a, b) in enumerate(
        [(x, y) for x in ("cargo", "captain", "port", "flag") for y in ("old", "red", "late", "lost")] * (tokens // 200)))
    body = chat(text + "\nWhich ship was lost?")
    status, headers, data = proxy.ask("POST", "/v1/chat/completions", body, {"x-braid-compression": "0.2"})
    note = headers.get("x-braid-compression", "")
    fault = "" if status == 200 and note else f"status {status}, header '{note}': {data[:300]}"
    checks.report("compressed", fault, note)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="address of the server")
    parser.add_argument("proxy", help="address of the proxy in front of it")
    parser.add_argument("--streams", type=int, default=64, help="streams at once [default 64]")
    parser.add_argument("--compressed-tokens", type=int, default=0,
                        help="also sends a prompt of about so many tokens that is compressed")
    options = parser.parse_args()
    server, proxy = Place(options.server), Place(options.proxy)
    checks = Checks()
    for case in CASES:
        try:
            compare(checks, server, proxy, *case)
        except (OSError, ValueError, http.client.HTTPException) as error:
            checks.report(case[0], repr(error))
    def guarded(name, check, *arguments):
        try:
            check(checks, *arguments)
        except (OSError, ValueError, http.client.HTTPException) as error:
            checks.report(name, repr(error))

    guarded("disconnect", disconnect, server, proxy)
    guarded("streams", streams, proxy, options.streams)
    if options.compressed_tokens > 0:
        guarded("compressed", compressed, proxy, options.compressed_tokens)
    print(f"{checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
