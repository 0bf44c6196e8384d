"""PyYAML reads what `vllm-vcr cassette fmt` writes, with equal strings.

Usage: pyyaml.py BINARY. Makes cassettes of texts that YAML readers take for something else, and of random ones.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

TRICKY = """
 ~ null Null yes No ON off y N true FALSE 1 1.0 1e5 1_000 0x1F 0o17 017 12:30 12:30:45 2026-06-17 .inf -.INF .nan = << - #a a#b
a:b :a a: [a] {a} &a *a !a | > %a @a `a` 'a' "a" --- ... ? a,b \\ \\n x\\"y it's -1 +1 .5 1. 0b11 0b 08 1e400 null\\n
""".split() + [
    "", " ", "a ", " a", "a: b", "a #b", "- a", "? a", "a, b", "a\tb", "\ta", "a\n", "a\nb", "a\n b\n", "\na", "a\n\n", "a\r\nb",
    "x\n \ny", "\x00\x07\x1b\x7f", "\x85\xa0", "\u2028\u2029\ufeff\ufffe", "é ü 日本語 🙂", "\u200b", "- [x] task\n- [ ] other\n",
    "2026-06-17T12:00:00Z", "key: value\n  nested: 'yes'\n", "Where is Rome?", "why? how", "a?b", "/v1/x?y=1", "\ud7ff\ue000\ufffd", "a" * 500, "word " * 100,
]


def random_text(dice):
    alphabet = "ab \n\t:#-,[]{}&*!|>'\"%@`\\?=~.0123456789é日🙂\x85\u2028\x00"
    return "".join(dice.choice(alphabet) for _ in range(dice.randrange(24)))


def check(binary, texts, path):
    messages = [{"role": "user", "content": text} for text in texts]
    body = {"model": "m", "messages": messages, "extra": {text: [text, {text: text}] for text in texts}}
    answer = {"json": {"said": texts, "deep": [[text] for text in texts]}}
    records = [{"id": 0, "request": "POST /v1/x", "body": body, "answer": {"status": 200, **answer}}]
    path.write_text(json.dumps({"vcr": 1, "records": records}, ensure_ascii=True).replace("\\ud83d\\ude42", "🙂"))
    subprocess.run([binary, "cassette", "fmt", path], check=True)
    read = yaml.safe_load(path.read_text(encoding="utf-8"))
    got = read["records"][0]
    assert got["body"] == body, differing(got["body"], body)
    assert got["answer"]["json"] == answer["json"], differing(got["answer"]["json"], answer["json"])
    assert path.read_text().lstrip("#").count("\n") > 5, "it is laid out in lines"


def check_numbers(binary, path):
    """Integers keep every digit: as numbers where 64 bits hold them, else as text."""
    numbers = [0, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**40 + 1]
    record = {"request": "POST /v1/x", "body": {"n": numbers}, "answer": {"json": numbers}}
    path.write_text(json.dumps({"vcr": 1, "records": [record]}))
    subprocess.run([binary, "cassette", "fmt", path], check=True)
    got = yaml.safe_load(path.read_text(encoding="utf-8"))["records"][0]
    wanted = [number if -(2**63) <= number < 2**64 else str(number) for number in numbers]
    assert got["body"]["n"] == wanted and got["answer"]["json"] == wanted, got


def differing(got, wanted):
    got, wanted = json.dumps(got), json.dumps(wanted)
    at = next((at for at, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
    return f"...{got[max(at - 40, 0):at + 60]} instead of ...{wanted[max(at - 40, 0):at + 60]}"


def main(binary):
    dice = random.Random(6)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.yaml"
        check(binary, TRICKY, path)
        check_numbers(binary, path)
        for _ in range(60):
            check(binary, [random_text(dice) for _ in range(20)], path)
    print(f"PyYAML {yaml.__version__} reads every one of {len(TRICKY) + 1200} texts as it was")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
