"""Asks a server what `sample.py` made, and compares the classes of its statuses with those of another.

Usage:
  statuses.py ask URL SAMPLE OUT      sends every request; OUT is what tests/goldens/vllm-0.32.0/fuzz.jsonl holds
  statuses.py compare ENGINE PLAY     two such files; prints the requests that got another class, exit code 1 if there are any

The engine has to be one that serves `tiny-qwen3` with --max-model-len 4096. The test `validation` compares the stored answers of the engine
with `play` in the same way, in CI.
"""

import json
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIMIT_S = 40
AT_A_TIME = 8


def rows(path):
    return [json.loads(line) for line in Path(path).read_text().split("\n") if line]


def status(url, request):
    data = json.dumps(request["body"]).encode()
    sent = urllib.request.Request(url + request["path"], data=data, headers=request["headers"], method=request["method"])
    try:
        with urllib.request.urlopen(sent, timeout=LIMIT_S) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


def ask(url, sample, out):
    requests = rows(sample)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        statuses = pool.map(lambda row: status(url, row["request"]), requests)
        lines = [
            {"case": row["case"], "path": row["request"]["path"], "body": row["request"]["body"], "status": code}
            for row, code in zip(requests, statuses)
        ]
    Path(out).write_text("".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines))
    print(f"{len(lines)} requests asked")


def compare(engine, play):
    ours = {row["case"]: row["status"] for row in rows(play)}
    differing = [row for row in rows(engine) if row["status"] // 100 != ours[row["case"]] // 100]
    for row in differing:
        print(f"{row['case']}: engine {row['status']}, play {ours[row['case']]}: {json.dumps(row['body'])[:200]}")
    print(f"{len(ours) - len(differing)} of {len(ours)} have the same class of status")
    return 1 if differing else 0


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    sys.exit({"ask": ask, "compare": compare}[verb](*arguments))
