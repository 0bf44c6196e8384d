"""Makes the sample of requests that `statuses.py` asks of two servers: schemathesis over vLLM's openapi.json, always the same ones.

Usage: target/fuzz-venv/bin/python tests/fuzz/sample.py FILE

Three of four requests are made so that they reach the engine's own checks: the model is the one that is served, and a count of tokens or
choices that fits its type is a small one. Requests for pages and those over 4 KB are left out, and so is what changes a server for the next
request.
"""

import json
import random
import sys
from pathlib import Path

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

ROOT = Path(__file__).resolve().parents[2]
PER_OPERATION = {
    "/v1/chat/completions": 120,
    "/v1/completions": 120,
    "/v1/responses": 60,
    "/v1/messages": 60,
    "/v1/messages/count_tokens": 20,
    "/tokenize": 40,
    "/detokenize": 30,
    "/v1/chat/completions/batch": 20,
    "/invocations": 10,
}
LARGEST = 4096
SMALL = {"n": 2, "min_tokens": 0}
MOST_TOKENS = 3
# The field that says how many tokens an answer has at the most; the first of several wins.
LIMITS = {"/v1/chat/completions": ["max_completion_tokens", "max_tokens"], "/v1/responses": ["max_output_tokens"]}


def document():
    """vLLM's openapi.json, as it was recorded."""
    for line in (ROOT / "tests/goldens/vllm-0.32.0/plain.jsonl").read_text().split("\n"):
        golden = json.loads(line)
        if golden["case"] == "get_openapi_json":
            return json.loads(golden["body"])
    raise SystemExit("no get_openapi_json in the goldens")


def bodies(operation, count):
    """So many different bodies of one operation."""
    found = {}

    @seed(7)
    @settings(max_examples=count * 3, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy())
    def collect(case):
        try:
            text = json.dumps(case.body)
            text.encode()
        except (TypeError, UnicodeEncodeError):
            return
        if len(text) <= LARGEST:
            found.setdefault(text, case.body)

    collect()
    return list(found.values())[:count]


def within_reach(body, path, choice):
    """The body with a model that is served and without long work."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    if choice.random() < 0.75:
        body["model"] = "tiny-qwen3"
    for name, small in SMALL.items():
        if isinstance(body.get(name), int):
            body[name] = min(body[name], small)
    if path.endswith("tokenize"):
        return body
    names = LIMITS.get(path, ["max_tokens"])
    said = [name for name in names if body.get(name) is not None]
    if not said:
        body[names[-1]] = MOST_TOKENS
    for name in said:
        if isinstance(body[name], int):
            body[name] = min(body[name], MOST_TOKENS)
    return body


def main(path):
    choice = random.Random(7)
    schema = schemathesis.openapi.from_dict(document())
    rows = []
    for result in schema.get_all_operations():
        operation = result.ok()
        count = PER_OPERATION.get(operation.path, 0)
        if count == 0 or operation.method != "post":
            continue
        for body in bodies(operation, count):
            name = operation.path.removeprefix("/v1").strip("/").replace("/", "_")
            request = {"method": "POST", "path": operation.path, "headers": {"content-type": "application/json"}}
            rows.append({"case": f"{name}_{len(rows)}", "request": request | {"body": within_reach(body, operation.path, choice)}})
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} requests")


if __name__ == "__main__":
    main(sys.argv[1])
