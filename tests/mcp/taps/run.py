"""Official SDKs as servers behind taps: what a client sees through each tap is what it sees without one. Acceptance case 20.

    run.py VLLM-VCR

Needs Python with the package `mcp`, and Node with `@modelcontextprotocol/sdk` in the folder that MCP_NODE_MODULES names; MCP_RMCP_SERVER
may name the program of tests/mcp/taps/rmcp. Prints a line
for each way: messages that passed, and differences. Exits with 1 where there is any.
"""

import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "sdk"))

from forks import forking
from ports import free_port

PYTHON = forking("import mcp.server.mcpserver")


class Engine(http.server.BaseHTTPRequestHandler):
    """An engine that is not asked."""

    def do_GET(self):
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def started(command, port):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            return process
        except urllib.error.HTTPError:
            return process
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.1)
    process.kill()
    raise SystemExit(f"{command} does not answer:\n{process.communicate()[1]}")


def client(mode, *target):
    command = [PYTHON, str(HERE / "client.py"), mode, *map(str, target)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if ran.returncode:
        raise SystemExit(f"{command} failed:\n{ran.stderr}")
    return json.loads(ran.stdout)


def differences(direct, through):
    pairs = list(zip(direct["seen"], through["seen"]))
    found = [(one, other) for one, other in pairs if one != other]
    found += [("length", len(direct["seen"]), len(through["seen"]))] * (len(direct["seen"]) != len(through["seen"]))
    return found + [("progress", direct["progress"], through["progress"])] * (direct["progress"] != through["progress"])


def main(program):
    folder = pathlib.Path(tempfile.mkdtemp())
    engine = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    python = [PYTHON, str(HERE / "server.py")]
    commands = {"python": python, "node": ["node", str(HERE / "server.mjs")]}
    rust = os.environ.get("MCP_RMCP_SERVER")
    if rust:
        commands["rmcp"] = [rust]
    servers, urls = [], {}
    for name, command in commands.items():
        port = free_port()
        servers.append(started([*command, str(port)], port))
        urls[name] = f"http://127.0.0.1:{port}/mcp"
    port = free_port()
    tapped = f"http://127.0.0.1:{port}/mcp"
    cassette = folder / "all.yaml"
    tap = [program, "tap", "--upstream", f"http://127.0.0.1:{engine.server_port}", "--listen", f"127.0.0.1:{port}", "--cassette", str(cassette)]
    tap += [part for name, url in urls.items() for part in ("--mcp", f"{name}={url}")]
    tap += ["--mcp-stdio", f"spawned='{PYTHON}' '{HERE / 'server.py'}' stdio"]
    tapping = started(tap, port)
    failed = 0

    def compare(what, direct, through):
        nonlocal failed
        found = differences(direct, through)
        failed += len(found)
        print(f"{what}: {len(direct['seen'])} results, {len(found)} differences", *found[:3], sep="\n  " if found else "", flush=True)

    try:
        for name, url in urls.items():
            for mode in ["legacy", "auto"]:
                compare(f"{name} over HTTP through tap, {mode}", client(mode, url), client(mode, f"{tapped}/{name}"))
        direct = client("legacy", *python, "stdio")
        compare("python over stdio through tap as HTTP", direct, client("legacy", f"{tapped}/spawned"))
        compare("python over stdio through mcp-tap", direct, client("legacy", program, "mcp-tap", "--cassette", folder / "stdio.yaml", "--", *python, "stdio"))
        if rust:
            direct = client("legacy", rust, "stdio")
            compare("rmcp over stdio through mcp-tap", direct, client("legacy", program, "mcp-tap", "--cassette", folder / "rmcp.yaml", "--", rust, "stdio"))
        for name, url in urls.items():
            for mode in ["legacy", "auto"]:
                tape = folder / f"{name}-{mode}.yaml"
                compare(f"{name} over HTTP through mcp-tap --url, {mode}", client(mode, url), client(mode, program, "mcp-tap", "--cassette", tape, "--url", url))
    finally:
        tapping.terminate()
        notes = tapping.communicate()[1]
        for server in servers:
            server.terminate()
            server.communicate()
    for file in sorted(folder.glob("*.yaml")):
        checked = subprocess.run([program, "cassette", "validate", str(file)], capture_output=True, text=True)
        failed += checked.returncode != 0
        print(f"{file.name}: {(checked.stdout + checked.stderr).strip().rsplit(': ', 1)[-1]}")
    print(notes[notes.find("recorded ") :].strip())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(str(pathlib.Path(sys.argv[1]).resolve()))
