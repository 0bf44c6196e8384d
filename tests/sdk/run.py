"""Runs the OpenAI and Anthropic SDKs and curl against `vllm-vcr play`, directly, through TLS and
through `vllm-vcr tap`.

Usage: run.py BINARY. Prints one line per failure and `N passed, N failed`; exits 1 when anything failed.
"""

import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import answers
import cases
import families
import servers
import trustme


class Tally:
    """Counts cases and reports the failed ones."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def run(self, name, case, *arguments):
        try:
            case(*arguments)
        except Exception:
            self.failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        else:
            self.passed += 1


def ended_well(server):
    assert server.exit_code == 0, f"exit code {server.exit_code}"


def is_sound(binary, trace):
    checked = subprocess.run([binary, "inspect", "check", trace], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def holds_records(trace):
    lines = trace.read_text().splitlines()
    records = [line for line in lines if not line.startswith('{"meta"')]
    assert len(records) >= len(cases.ALL), f"{len(records)} records"
    assert lines[0].startswith('{"meta"'), "no meta"


def main(binary):
    tally = Tally()
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "sdk.jsonl"
        with servers.play(binary, "--instant", "--enable-scale-out") as play:
            for case in cases.ALL + families.ALL:
                tally.run(f"play: {case.__name__}", case, play.url)
        tally.run("play: ends well", ended_well, play)
        with servers.play(binary, "--synthetic", "random") as synthetic:
            for case in cases.ALL:
                tally.run(f"synthetic: {case.__name__}", case, synthetic.url)
        rules = Path(directory) / "answers.yaml"
        rules.write_text(answers.RULES)
        with servers.play(binary, "--answers", str(rules)) as ruled:
            for case in answers.ALL:
                tally.run(f"answers: {case.__name__}", case, ruled.url)
        tally.run("answers: ends well", ended_well, ruled)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(Path(directory) / "ca.pem")
        os.environ["SSL_CERT_FILE"] = os.environ["CURL_CA_BUNDLE"] = str(Path(directory) / "ca.pem")
        with servers.secure_play(binary, authority, Path(directory), "--instant") as secure:
            for case in cases.ALL:
                tally.run(f"https: {case.__name__}", case, secure.url)
        tally.run("https: ends well", ended_well, secure)
        with servers.play(binary, "--instant") as play, servers.tap(binary, play.url, trace) as tap:
            for case in cases.ALL:
                tally.run(f"tap: {case.__name__}", case, tap.url)
        tally.run("tap: ends well", ended_well, tap)
        tally.run("tap: the trace holds records", holds_records, trace)
        tally.run("tap: the trace is sound", is_sound, binary, trace)
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
