"""The programs under test: started on a free port, ready when they answer, ended with SIGTERM."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

from client import Connection


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A `vllm-vcr` command as a context; its log goes to a file. `exit_code` is there after the context."""

    def __init__(self, command: list[str], port: int, log: Path):
        self.command, self.port, self.log, self.exit_code = command, port, log, None

    def __enter__(self) -> "Server":
        self.process = subprocess.Popen(self.command, stdout=self.log.open("wb"), stderr=subprocess.STDOUT)
        for _ in range(1000):
            if self.process.poll() is not None:
                raise SystemExit(f"fidelity: {' '.join(self.command)} ended at once:\n{self.log.read_text()}")
            try:
                if Connection("127.0.0.1", self.port).exchange("GET", "/health", {"Connection": "close"}, None).status == 200:
                    return self
            except OSError:
                time.sleep(0.02)
        raise SystemExit(f"fidelity: {' '.join(self.command)} does not get ready; see {self.log}")

    def __exit__(self, *_) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.exit_code = "killed: no end after SIGTERM"


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
