"""Fuzzes `vllm-vcr play` over vLLM's openapi.json. Use `run`, which installs what this needs.

A request fails when it is answered with 5xx, or not within the time limit. The server must be healthy to the end, must
not have panicked, and must end well. Fewer than 2,000 requests are a failure too.
"""

import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/sdk"))

import servers  # noqa: E402

FEWEST_REQUESTS = 2000
REQUEST_LIMIT_S = 20


def document(directory):
    """vLLM's openapi.json, as it was recorded."""
    for line in (ROOT / "tests/goldens/vllm-0.32.0/plain.jsonl").read_text().split("\n"):
        golden = json.loads(line)
        if golden["case"] == "get_openapi_json":
            path = Path(directory) / "openapi.json"
            path.write_text(golden["body"])
            return path
    raise SystemExit("no get_openapi_json in the goldens")


def unserved(url, schema):
    """The document's paths that this server does not have, in so many words."""
    paths = []
    for path, methods in json.loads(schema.read_text())["paths"].items():
        request = urllib.request.Request(url + path, data=b"{}", method=next(iter(methods)).upper())
        try:
            urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S)
        except urllib.error.HTTPError as error:
            if error.code == 404 and error.read() == b'{"detail":"Not Found"}':
                paths.append(path)
    print(f"not served and left out: {', '.join(paths)}")
    return paths


def fuzz(url, schema, examples, report):
    """Runs schemathesis; its own exit code says whether a request failed."""
    command = [Path(sys.executable).parent / "schemathesis", "run", schema, "--url", url, "--workers", "1"]
    command += ["--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing", "--max-examples", examples]
    command += ["--request-timeout", str(REQUEST_LIMIT_S), "--seed", "7", "--continue-on-failure", "--warnings", "off"]
    command += ["--report", "ndjson", "--report-ndjson-path", report, "--generation-database", "none"]
    for path in unserved(url, schema):
        command += ["--exclude-path", path]
    return subprocess.run([str(word) for word in command], cwd=report.parent).returncode


def statuses(report):
    """How many requests were answered with which status."""
    counts = Counter()

    def walk(value):
        if isinstance(value, dict):
            if isinstance(value.get("status_code"), int):
                counts[value["status_code"]] += 1
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    for line in report.read_text().split("\n"):
        if line:
            walk(json.loads(line))
    return counts


def main(binary, examples):
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.ndjson"
        log = Path(directory) / "server.log"
        with servers.play(binary, "--instant", log=log) as play:
            code = fuzz(play.url, document(directory), examples, report)
        counts = statuses(report)
        requests = sum(count for status, count in counts.items() if status != 404)
        print(f"{requests} requests: " + ", ".join(f"{status}: {count}" for status, count in sorted(counts.items())))
        failures = {
            "schemathesis found failures": code != 0,
            f"fewer than {FEWEST_REQUESTS} requests": requests < FEWEST_REQUESTS,
            "answers of 5xx": any(status >= 500 for status in counts),
            "a panic": "panicked" in log.read_text(),
            f"the server ended with {play.exit_code}": play.exit_code != 0,
        }
        found = [name for name, failed in failures.items() if failed]
        print("FAILED: " + "; ".join(found) if found else "no 5xx, no panic, no hang")
        if "a panic" in found:
            print(log.read_text()[-4000:])
        return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2]))
