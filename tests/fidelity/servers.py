"""The programs under test: started on a free port, ready when they answer, ended with SIGTERM."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "sdk"))

from client import Connection
from ports import free_port


class Server:
    """A command as a context, ready when it answers at `port`, or at once where that is None; its log goes to a file. `exit_code` is there
    after the context."""

    def __init__(self, command: list[str], port: int | None, log: Path, patience: float = 120):
        self.command, self.port, self.log, self.patience, self.exit_code = command, port, log, patience, None

    def __enter__(self) -> "Server":
        self.process = subprocess.Popen(self.command, stdout=self.log.open("wb"), stderr=subprocess.STDOUT)
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            if self.port is None:
                return self
            if self.process.poll() is not None:
                raise SystemExit(f"fidelity: {' '.join(self.command)} ended at once:\n{self.log.read_text()}")
            try:
                if Connection("127.0.0.1", self.port).exchange("GET", "/health", {"Connection": "close"}, None).status == 200:
                    return self
            except OSError:
                time.sleep(0.02)
        self.process.kill()
        raise SystemExit(f"fidelity: {' '.join(self.command)} does not get ready; see {self.log}")

    def __exit__(self, *_) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.exit_code = "killed: no end after SIGTERM"


def front_end(run, engines: int, log: Path) -> Server:
    """vLLM's own front end, which waits for its engine at the port `engines`."""
    port = free_port()
    waits = ["--port", str(port), "--data-parallel-size-local", "0", "--data-parallel-rpc-port", str(engines)]
    return Server([*shlex.split(run.front_end), *waits, *run.flags], port, log, patience=300)


def real_core(run, front_end: int, log: Path) -> Server:
    """vLLM's own engine, without a front end."""
    joins = ["--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(front_end)]
    return Server([*shlex.split(run.engine_core), *joins, "--data-parallel-size", "1", "--data-parallel-size-local", "1"], None, log)


def core_tap(run, front_end: int, engines: int, trace: Path) -> Server:
    """The tap between a front end and its engine, which connects to the port `engines`."""
    ports = ["--upstream", f"tcp://127.0.0.1:{front_end}", "--listen", f"tcp://127.0.0.1:{engines}"]
    return Server([run.binary, "tap", "--engine-core", *ports, "--trace-out", str(trace), "--overwrite", "--record-tokens", "--record-logprobs",
                   "--served-model-name", run.model], None, trace.with_suffix(".tap.log"))


def play_core(run, front_end: int, *source: str, log: Path) -> Server:
    return Server([run.binary, "play", "--engine-core", f"tcp://127.0.0.1:{front_end}", *source], None, log)


def tap(run, trace: Path) -> Server:
    port = free_port()
    return Server([run.binary, "tap", "--upstream", run.engine, "--listen", f"127.0.0.1:{port}", "--trace-out", str(trace),
                   "--overwrite", "--record-tokens", "--record-logprobs"], port, trace.with_suffix(".tap.log"))


def tap_cassette(run, cassette: Path) -> Server:
    port = free_port()
    return Server([run.binary, "tap", "--upstream", run.engine, "--listen", f"127.0.0.1:{port}", "--cassette", str(cassette),
                   "--record-errors", "all"], port, cassette.with_suffix(".tap.log"))


def play_cassette(run, cassette: Path) -> Server:
    port = free_port()
    return Server([run.binary, "play", "--cassette", str(cassette), "--instant", "--port", str(port)], port, cassette.with_suffix(".play.log"))


def play(run, trace: Path, *more: str, match: str = "prefix") -> Server:
    port = free_port()
    parsers = ["--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"] if run.parsers else []
    return Server([run.binary, "play", "--replay-tokens", str(trace), "--replay-match", match, "--tokenizer", run.tokenizer,
                   "--served-model-name", run.model, "--enable-prompt-tokens-details", "--enable-request-id-headers",
                   "--max-model-len", "4096", "--block-size", "128", "--port", str(port), *parsers, *more], port, trace.with_suffix(f".{match}.log"))


def records(trace: Path) -> tuple[list[dict], dict]:
    """The records of a trace in file order, and its end line."""
    lines = [json.loads(line) for line in trace.read_text().split("\n") if line]
    end = next((line["end"] for line in lines if "end" in line), {})
    return [line for line in lines if "meta" not in line and "end" not in line], end
