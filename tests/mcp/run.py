"""Official SDKs as clients of replayed servers: what a client sees of a server over stdio while it is recorded, it sees again of the
cassette, over stdio and over HTTP, alone and beside another client of the same server. Acceptance case 20.

Usage: run.py BINARY [python-legacy] [python-modern] [typescript] [rmcp-legacy] [rmcp-modern]. Without names those that are installed.
Prints one line per client and per failure, and `N passed, N failed`; exits 1 when anything failed.
"""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODULES = Path(os.environ.get("MCP_NODE_MODULES", ROOT / "target" / "mcp" / "node_modules"))
SERVER = [sys.executable, str(HERE / "shop.py")]
CLIENTS = {
    "python-legacy": [sys.executable, str(HERE / "client.py"), "legacy"],
    "python-modern": [sys.executable, str(HERE / "client.py"), "modern"],
    "typescript": ["node", str(HERE / "client.mjs"), str(MODULES)],
    "rmcp-legacy": [str(ROOT / "target" / "mcp" / "rmcp" / "debug" / "shop-client"), "legacy"],
    "rmcp-modern": [str(ROOT / "target" / "mcp" / "rmcp" / "debug" / "shop-client"), "modern"],
}
LONGEST = 120


def is_installed(name):
    if name == "typescript":
        return MODULES.exists() and shutil.which("node")
    return not name.startswith("rmcp") or Path(CLIENTS[name][0]).exists()


def seen(client, target):
    """What a client prints, a value for each line."""
    done = subprocess.run([*CLIENTS[client], *target], text=True, timeout=LONGEST, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Play:
    """The cassette over HTTP."""

    def __init__(self, binary, cassette, report):
        command = [binary, "play", "--port", "0", "--strict", "--cassette", cassette, "--report", report]
        self.report = report
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if " on http://" in line:
                self.root = "http://" + line.split("http://")[1].split()[0]
                return
        raise RuntimeError("play did not start")

    def end(self):
        """Its exit code and its report."""
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.read()
        code = self.process.wait(timeout=LONGEST)
        return code, json.loads(Path(self.report).read_text())


def differences(recorded, now):
    if len(recorded) != len(now):
        yield f"{len(now)} messages, recorded {len(recorded)}"
    for before, after in zip(recorded, now):
        if before != after:
            yield f"recorded {json.dumps(before)[:300]}\n    now      {json.dumps(after)[:300]}"


class Check:
    def __init__(self, binary):
        self.binary, self.passed, self.failed = binary, 0, 0

    def that(self, name, found):
        found = list(found)
        self.passed += not found
        self.failed += bool(found)
        for line in found[:10]:
            print(f"FAILED {name}: {line}")

    def client(self, name, folder):
        cassette, report = str(folder / f"{name}.yaml"), str(folder / f"{name}.json")
        tap = [self.binary, "mcp-tap", "--cassette", cassette, "--name", "shop", "--", *SERVER]
        recorded = seen(name, tap)
        self.that(f"{name} over stdio", differences(recorded, seen(name, [self.binary, "mcp-play", "--cassette", cassette, "--strict"])))
        play = Play(self.binary, cassette, report)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            urls = [f"{play.root}/vcr/s/{session}/mcp/shop" for session in ("one", "other")]
            both = list(pool.map(lambda url: seen(name, [url]), urls))
        for now in both:
            self.that(f"{name} over HTTP", differences(recorded, now))
        code, found = play.end()
        wrong = [f"{key}: {value}" for key, value in found["sessions"].items() if value["misses"] or value["unconsumed"]]
        self.that(f"{name}: exit code {code}", wrong if code == 0 else [found["failing"], *wrong])
        print(f"{name}: {len(recorded)} messages", flush=True)


def main():
    names = sys.argv[2:] or [name for name in CLIENTS if is_installed(name)]
    for name in CLIENTS.keys() - set(names):
        print(f"left out: {name}")
    check = Check(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            try:
                check.client(name, Path(folder))
            except Exception as error:
                check.that(name, [repr(error)])
    print(f"{check.passed} passed, {check.failed} failed")
    sys.exit(check.failed > 0)


main()
