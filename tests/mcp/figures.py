"""Prints how long MCP takes: loading a cassette of 10,000 records, finding a record, a message through the tap over stdio.

Usage: figures.py VLLM-VCR

Use a release build, on a machine that does nothing else. Nothing is asserted.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

RECORDS = 10_000
CALLS = 20_000

RECORD = """- id: {id}
  at: tool:shop/tool_{tool}
  request: POST /mcp/shop
  body:
    method: tools/call
    params:
      name: tool_{tool}
      arguments: {{path: /srv/data/file_{id}.txt, query: 'words of request {id}', limit: {id}, deep: true}}
  answer:
    status: 200
    json:
      result:
        content:
        - {{type: text, text: 'The result of call {id}: a line of text that is about as long as such lines are.'}}
        isError: false
"""

ECHO = r"""
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line.replace(b'"method":"ping"', b'"result":{}'))
    sys.stdout.buffer.flush()
"""


class Stdio:
    """A program that answers lines."""

    def __init__(self, command):
        self.began = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def ask(self, line):
        self.process.stdin.write(line)
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def percentiles(seconds):
    ordered = sorted(seconds)
    return [ordered[int(len(ordered) * share)] * 1e6 for share in (0.5, 0.99, 0.999)]


def timed(server, lines):
    seconds = []
    for line in lines:
        began = time.perf_counter()
        answer = server.ask(line)
        seconds.append(time.perf_counter() - began)
        assert answer
    return percentiles(seconds)


def shown(what, figures):
    p50, p99, p999 = figures
    print(f"{what}: p50 {p50:.0f}, p99 {p99:.0f}, p99.9 {p999:.0f} microseconds", flush=True)


def request(number, method, params):
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, separators=(",", ":")).encode() + b"\n"


def call(number):
    record = number * 7919 % RECORDS
    arguments = {"limit": record, "deep": True, "query": f"words of request {record}", "path": f"/srv/data/file_{record}.txt"}
    return request(number, "tools/call", {"name": f"tool_{record % 20}", "arguments": arguments})


def cpu_of(process):
    user, system = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def loading(program, cassette, flags):
    """Seconds until `play` serves, and CPU time."""
    began = time.perf_counter()
    command = [program, "play", "--port", "0", "--cassette", cassette, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if " on http://" in line:
            break
    seconds, cpu = time.perf_counter() - began, cpu_of(process)
    process.terminate()
    process.stderr.read()
    process.wait()
    return seconds, cpu


def main(program):
    folder = pathlib.Path(tempfile.mkdtemp())
    cassette, small = folder / "large.yaml", folder / "small.yaml"
    cassette.write_text("vcr: 1\nrecords:\n" + "".join(RECORD.format(id=at, tool=at % 20) for at in range(RECORDS)))
    small.write_text("vcr: 1\nrecords:\n" + RECORD.format(id=0, tool=0))
    for what, file, flags in [
        ("play, 1 record", small, []),
        (f"play, {RECORDS} records", cassette, []),
        (f"play, {RECORDS} records, not searched for secrets", cassette, ["--allow-secrets"]),
    ]:
        found = [loading(program, str(file), flags) for _ in range(5)]
        print(f"{what}: {min(found)[0]:.2f} s, {min(found)[1]:.2f} s of CPU", flush=True)
    server = Stdio([program, "mcp-play", "--cassette", str(cassette)])
    server.ask(request(0, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "f", "version": "1"}}))
    print(f"mcp-play, {RECORDS} records: {time.perf_counter() - server.began:.2f} s to the first answer", flush=True)
    shown("mcp-play, ping, which needs no record", timed(server, [request(at, "ping", {}) for at in range(CALLS)]))
    shown(f"mcp-play, a call of {RECORDS} records", timed(server, [call(at) for at in range(CALLS)]))
    server.end()
    echo = [sys.executable, "-c", ECHO]
    lines = [request(at, "ping", {}) for at in range(CALLS)]
    for _ in range(2):
        direct = Stdio(echo)
        shown("an echo in Python", timed(direct, lines))
        direct.end()
        (folder / "tap.yaml").unlink(missing_ok=True)
        tapped = Stdio([program, "mcp-tap", "--cassette", str(folder / "tap.yaml"), "--", *echo])
        shown("the same behind mcp-tap", timed(tapped, lines))
        tapped.end()


if __name__ == "__main__":
    main(str(pathlib.Path(sys.argv[1]).resolve()))
