#!/usr/bin/env python3
"""Shows how Python SDKs react to each kind of fault, as a table.

    pip install openai anthropic litellm
    tests/faults/clients/run.py [--program target/debug/vllm-vcr] [--write docs/src/reference/faults.md]

One server of made-up tokens answers; each request names its fault in a header, and offers a tool where the fault is in what the
model says. An SDK streams a chat (or a message) with its own retries, and what it gives its caller is noted.
"""

import argparse
import collections
import importlib.metadata
import json
import os
import re
import subprocess
import time
import urllib.request

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import litellm
import openai

TIMEOUT = 1.5
WORDS = "Say it."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
MARKS = ("<!-- clients -->\n", "<!-- end of the clients -->")


def start(program):
    command = [program, "play", "--port", "0", "--synthetic", "random", "--served-model-name", "m", "--fault-headers",
               "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r" on (http://\S+)", line):
            # What it prints later is not needed, and must not fill the pipe.
            subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
            return server, found[1]
    raise SystemExit("the server did not start")


def get(url):
    with urllib.request.urlopen(url) as page:
        return json.load(page)


def parts_of(delta):
    """Names of what a chat's delta has; a call where it begins."""
    yield from ["text"] * bool(delta.content)
    yield from ["reasoning"] * bool(getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None))
    yield from ["refusal"] * bool(getattr(delta, "refusal", None))
    yield from ("call" for call in delta.tool_calls or [] if call.function.name)


def with_openai(url, fault, tools):
    client = openai.OpenAI(base_url=url + "/v1", api_key="k", timeout=TIMEOUT)
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": WORDS}], max_tokens=6, stream=True, extra_headers=fault,
        **({"tools": [TOOL]} if tools else {}),
    )
    for chunk in stream:
        for choice in chunk.choices:
            yield parts_of(choice.delta), choice.finish_reason


def with_anthropic(url, fault, tools):
    client = anthropic.Anthropic(base_url=url, api_key="k", timeout=TIMEOUT)
    stream = client.messages.create(
        model="m", messages=[{"role": "user", "content": WORDS}], max_tokens=6, stream=True, extra_headers=fault,
        **({"tools": [{"name": "weather", "input_schema": SCHEMA}]} if tools else {}),
    )
    kinds = {"text_delta": "text", "thinking_delta": "reasoning"}
    for event in stream:
        if event.type == "content_block_delta":
            yield [kinds[event.delta.type]] if event.delta.type in kinds else [], None
        elif event.type == "content_block_start":
            yield ["call"] * (event.content_block.type == "tool_use"), None
        elif event.type == "message_delta":
            yield [], event.delta.stop_reason


def with_litellm(url, fault, tools):
    stream = litellm.completion(
        model="openai/m", api_base=url + "/v1", api_key="k", messages=[{"role": "user", "content": WORDS}], max_tokens=6,
        stream=True, timeout=TIMEOUT, extra_headers=fault, **({"tools": [TOOL]} if tools else {}),
    )
    for chunk in stream:
        for choice in chunk.choices:
            yield parts_of(choice.delta), choice.finish_reason


CLIENTS = {"openai": with_openai, "anthropic": with_anthropic, "litellm": with_litellm}


def tried(url):
    return len(get(url + "/vcr/faults?hits=100000")["hits"])


def outcome(client, url, fault, tools):
    before, found, finish, error = tried(url), collections.Counter(), None, None
    try:
        for parts, reason in client(url, {"X-VCR-Fault": fault} if fault else {}, tools):
            found.update(parts)
            finish = reason or finish
    except Exception as caught:
        error = type(caught).__name__
    time.sleep(0.05)
    tries = tried(url) - before
    counts = [str(found["text"])] * (not found or "text" in found)
    counts += [f"{found[name]} {name}{'s' * (name == 'call' and found[name] > 1)}" for name in ("reasoning", "refusal", "call") if found[name]]
    said = ", ".join(counts) + (f" + `{error}`" if error else f", ends with {'`' + finish + '`' if finish else 'no reason'}")
    return said + (f", {tries} tries" if tries > 1 else "")


def table(url):
    rows = [("no fault", "", False)]
    for row in get(url + "/vcr/faults/catalog"):
        # A request has no quota of its own.
        if row["stage"] in ("before", "body", "reply") and row["kind"] != "quota":
            # The answers here have six tokens.
            line = re.sub(r"at token \d+", "at token 3", row["example"].split(" where ")[0])
            rows.append((f"`{line}`", line, row["stage"] == "reply"))
    yield "| fault | " + " | ".join(f"{name} {importlib.metadata.version(name)}" for name in CLIENTS) + " |"
    yield "|---|" + "---|" * len(CLIENTS)
    for name, line, tools in rows:
        cells = [outcome(client, url, line, tools) for client in CLIENTS.values()]
        print(name, cells, flush=True)
        yield f"| {name} | " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="target/debug/vllm-vcr")
    parser.add_argument("--write", help="the page whose table is replaced")
    options = parser.parse_args()
    litellm.suppress_debug_info = True
    server, url = start(options.program)
    try:
        text = "\n".join(table(url)) + "\n"
    finally:
        server.terminate()
    if not options.write:
        print(text)
        return
    with open(options.write, encoding="utf-8") as page:
        before, rest = page.read().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    with open(options.write, "w", encoding="utf-8") as page:
        page.write(before + MARKS[0] + "\n" + text + "\n" + MARKS[1] + after)


if __name__ == "__main__":
    main()
