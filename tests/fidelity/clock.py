"""When the tokens of many streams came, and how far that is from a record."""

import base64
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import compare
from client import Answer, Connection, request_bytes


@dataclass
class Stream:
    """One measured stream. Offsets in milliseconds since its request was sent; one per token-bearing event."""

    answer: Answer
    offsets: list[float]
    e2e: float


def measure(host: str, port: int, cases) -> list[Stream]:
    """Sends all cases at once from a process of its own."""
    built = [request_bytes("engine.test", case.method, case.path, case.headers | {"Connection": "close"}, case.body) for case in cases]
    job = {"host": host, "port": port, "requests": [{"head": head.decode("latin-1"), "body": body.decode("latin-1")} for head, body in built]}
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("stopwatch.py"))], input=json.dumps(job), capture_output=True, text=True, check=True)
    return [read(one) for one in json.loads(done.stdout)]


def read(one: dict) -> Stream:
    data = base64.b64decode(one["data"])
    try:
        answer = Connection.parse(data)
    except (OSError, ValueError, IndexError) as broken:
        return Stream(Answer(0, [], f"no answer: {broken!r} in {data[:200]!r}".encode()), [], 0.0)
    offsets, at, so_far = [], data.index(b"\r\n\r\n") + 4, b""
    for chunk in answer.chunks or []:
        at += len(b"%x" % len(chunk)) + 4 + len(chunk)
        so_far += chunk
        while b"\n\n" in so_far:
            event, _, so_far = so_far.partition(b"\n\n")
            if holds_tokens(event):
                offsets.append(passed(one, at))
    return Stream(answer, offsets, passed(one, len(data)))


def holds_tokens(event: bytes) -> bool:
    if event == b"data: [DONE]" or not event.startswith(b"data: {"):
        return False
    made = json.loads(event.removeprefix(b"data: ")).get("choices") or []
    return bool(made) and "role" not in made[0].get("delta", {})


def passed(one: dict, size: int) -> float:
    """Milliseconds until `size` bytes had been read."""
    return next((time - one["start"]) * 1e3 for time, got in one["reads"] if got >= size)


def wanted(record: dict) -> list[float]:
    """The offset of every chunk of a record, in milliseconds."""
    offsets = [record["ttft_ms"]]
    for gap in record.get("itl_ms") or []:
        offsets.append(offsets[-1] + gap)
    return offsets


def table(report, title: str, records: list[dict], rounds: list[list[Stream]], judged: bool) -> None:
    """Prints, and when `judged` counts, how far the rounds are from the record: at most 1 % + 1 ms."""
    pairs = [(record, stream) for streams in rounds for record, stream in zip(records, streams)]
    metrics = {"ttft": [(wanted(record)[0], stream.offsets[0]) for record, stream in pairs if stream.offsets],
               "e2e": [(record["e2e_ms"], stream.e2e) for record, stream in pairs],
               "token": [both for record, stream in pairs if len(stream.offsets) == len(wanted(record)) for both in zip(wanted(record), stream.offsets)]}
    print(f"   {title}, ms\n   {'metric':8}{'count':>7}{'recorded p50':>14}{'p99':>10}{'this p50':>11}{'p99':>10}{'error p50':>11}{'p99':>8}{'allowed p50':>13}{'p99':>8}  within")
    for metric, values in metrics.items():
        row = {"count": len(values)}
        for quantile in (50, 99) if values else ():
            row[f"recorded p{quantile}"] = percentile([a for a, _ in values], quantile)
            row[f"this p{quantile}"] = percentile([b for _, b in values], quantile)
            row[f"error p{quantile}"] = percentile([abs(b - a) for a, b in values], quantile)
            row[f"allowed p{quantile}"] = row[f"recorded p{quantile}"] * 0.01 + 1
        row["within"] = bool(values) and all(row[f"error p{q}"] <= row[f"allowed p{q}"] for q in (50, 99))
        report.numbers[report.phase].setdefault(title, {})[metric] = {key: round(value, 3) for key, value in row.items()}
        cells = [row.get(f"{side} p{q}", float("nan")) for side in ("recorded", "this", "error", "allowed") for q in (50, 99)]
        print(f"   {metric:8}{len(values):7}" + "".join(f"{c:{w}.2f}" for c, w in zip(cells, (14, 10, 11, 10, 11, 8, 13, 8))) + f"  {'yes' if row['within'] else 'NO'}")
        if judged:
            late = {q: (row.get(f"error p{q}"), row.get(f"allowed p{q}")) for q in (50, 99)}
            report.case(f"timing of {metric}", [] if row["within"] else [("error", "at most " + str({q: a for q, (_, a) in late.items()}), {q: e for q, (e, _) in late.items()})], ("allowed", "measured"))


def percentile(values: list[float], quantile: int) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * quantile // 100) - 1)]
