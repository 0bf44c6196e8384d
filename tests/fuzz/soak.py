"""Honest streams through `tap` and `play`, alone and with the costliest requests that are known mixed in.

Usage: tests/fuzz/soak.py BINARY [SECONDS] [STREAMS]

First a tenth of SECONDS with honest streams alone, then SECONDS with the others too. Fails unless every honest stream is
answered whole and recorded once under its id, the 99th percentile of time to first token is at most twice that alone,
memory, by its medians, does not grow over the second half and no sample of it exceeds 2 GB, requests, records and drops add
up, and both servers end well.
"""

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sdk"))

import servers  # noqa: E402

TOKENS = 20
COSTLY_AT_ONCE = 3
COSTLY_LIMIT_S = 30
COSTLY_MOST_BYTES = 20_000_000
HONEST_LIMIT_S = 120
SAMPLE_S = 10
MOST_MEMORY_MB = 2000
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def encoded(value):
    return json.dumps(value).encode()


def chat(content="x", **fields):
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


def completion(prompt="a", **fields):
    return {"model": "m", "prompt": prompt, **fields}


def costly():
    """Twenty requests that are small for what they once cost: paths and bodies."""
    function = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    part = {"type": "text", "text": "y"}
    many = {"top_logprobs": 20, "logprobs": True, "max_tokens": 30000}
    return [
        (COMPLETIONS, encoded({"model": "m" * 60_000, "prompt": [""] * 100_000})),
        (COMPLETIONS, encoded(completion([""] * 100_000, max_tokens=1))),
        (COMPLETIONS, encoded({"model": "x" * 4_000_000, "prompt": "a", "n": 128})),
        (CHAT, encoded(chat(**many, n=1000, stream=True))),
        (CHAT, encoded(chat(**many, n=100))),
        (COMPLETIONS, encoded(completion(stop=["b" * 2_000_000], max_tokens=2000, ignore_eos=True))),
        (COMPLETIONS, encoded(completion([1] * 5_000_000, max_tokens=1))),
        (CHAT, b"[" * 100_000),
        (CHAT, encoded(chat() | {"messages": chat("AKIA" + "A" * 16)["messages"] * 20_000, "max_tokens": 1})),
        (CHAT, encoded(chat("password=hunter22 " * 150_000, max_tokens=1))),
        (CHAT, json.dumps(chat("x" * 500_000)).encode("utf-16")),
        (COMPLETIONS, encoded(completion(n=1000, max_tokens=5))),
        (CHAT, encoded(chat(chat_template="{% for i in range(100000000) %}a{% endfor %}"))),
        (CHAT, encoded(chat(tools=[function] * 20_000, max_tokens=1))),
        (COMPLETIONS, encoded(completion(logit_bias={str(i): 1 for i in range(100_000)}, max_tokens=1))),
        (CHAT, encoded(chat(structured_outputs={"regex": "(a{1,500}){1,500}"}, max_tokens=5))),
        ("/v1/embeddings", encoded({"model": "m", "input": ["x"] * 50_000})),
        ("/tokenize", encoded(completion("z" * 8_000_000))),
        ("/v1/responses", encoded({"model": "m", "input": "x" * 3_000_000})),
        ("/v1/messages", encoded({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [part] * 100_000}]})),
    ]


async def send(port, path, body, request_id, most=None):
    """Sends a request; returns seconds to the first token, and the end of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nx-request-id: {request_id}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        began, first, count, tail = time.perf_counter(), None, 0, b""
        while piece := await reader.read(65536):
            if first is None and b'"content"' in piece:
                first = time.perf_counter() - began
            count, tail = count + len(piece), (tail + piece)[-400:]
            if most and count > most:
                break
        return first, tail
    finally:
        writer.close()


class Phase:
    """One run of some seconds, and what it saw."""

    def __init__(self, port, seconds, streams, name):
        self.port, self.streams, self.name = port, streams, name
        self.until = time.monotonic() + seconds
        self.body = encoded(chat("hello there", max_tokens=TOKENS, stream=True, ignore_eos=True))
        self.first_tokens, self.ids, self.failures = [], [], Counter()
        self.answered, self.unanswered = multiprocessing.Value("q"), multiprocessing.Value("q")

    def goes_on(self):
        return time.monotonic() < self.until

    async def honest(self, number):
        await asyncio.sleep(number / self.streams * 5)
        turn = 0
        while self.goes_on():
            turn += 1
            request_id = f"{self.name}-{number}-{turn}"
            try:
                first, tail = await asyncio.wait_for(send(self.port, CHAT, self.body, request_id), HONEST_LIMIT_S)
            except (OSError, TimeoutError) as error:
                self.failures[type(error).__name__] += 1
                continue
            if first is None or b"[DONE]" not in tail:
                self.failures[tail[-100:]] += 1
                continue
            self.first_tokens.append(first)
            self.ids.append(request_id)

    def costly(self):
        return {"answered": self.answered.value, "unanswered": self.unanswered.value}

    def percentile(self, share, since=0):
        """Milliseconds to the first token that this share of the answers did not exceed, from answer number `since` on."""
        ordered = sorted(self.first_tokens[since:]) or [0]
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000


async def send_costly(port, until, number, answered, unanswered):
    requests = costly()
    at = number * len(requests) // COSTLY_AT_ONCE
    while time.monotonic() < until:
        path, body = requests[at % len(requests)]
        request_id = "r" * 20_000 if at % 5 == 0 else f"costly-{number}-{at}"
        at += 1
        sent = send(port, path, body, request_id, COSTLY_MOST_BYTES)
        try:
            await asyncio.wait_for(sent, COSTLY_LIMIT_S)
            answered.value += 1
        except (OSError, TimeoutError):
            unanswered.value += 1
        await asyncio.sleep(1)


def hostile(port, until, answered, unanswered):
    """Sends the costly requests, in a process of its own and after all others: what they cost their client, which would be another
    machine, is no part of an honest client's time."""
    os.nice(10)

    async def together():
        await asyncio.gather(*(send_costly(port, until, number, answered, unanswered) for number in range(COSTLY_AT_ONCE)))

    asyncio.run(together())


def memory(server):
    """Resident memory in MB."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


async def run(phase, watched, with_costly):
    tasks = [asyncio.create_task(phase.honest(number)) for number in range(phase.streams)]
    others = multiprocessing.Process(target=hostile, args=(phase.port, phase.until, phase.answered, phase.unanswered))
    if with_costly:
        others.start()
    samples = []
    while phase.goes_on():
        since = len(phase.first_tokens)
        await asyncio.sleep(SAMPLE_S)
        samples.append([memory(server) for server in watched])
        counts = f"{len(phase.ids)} answered, {phase.failures.total()} failed, costly {phase.costly()}"
        late = f"p99 {phase.percentile(0.99, since):.0f} ms"
        print(f"{phase.name}: memory of play and tap {samples[-1]} MB, {late}, {counts}", flush=True)
    await asyncio.gather(*tasks)
    if with_costly:
        others.join()
    return samples


def recording_tap(binary, upstream, trace, admin):
    """A tap whose counts are at the port `admin`."""
    port = servers.free_port()
    arguments = ["tap", "--upstream", upstream, "--listen", f"127.0.0.1:{port}", "--trace-out", str(trace)]
    return servers.Server(binary, [*arguments, "--admin-listen", f"127.0.0.1:{admin}"], port)


def counters(port):
    """The tap's counters, without histograms."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("vcr_"))
    return {name: float(value) for name, value in pairs}


def total(counts, prefix):
    return int(sum(value for name, value in counts.items() if name.startswith(prefix)))


def faults_of_counts(counts, trace, phases):
    requests = total(counts, "vcr_requests_total")
    outcomes = total(counts, "vcr_exchanges_total{")
    skipped = total(counts, "vcr_requests_not_recorded_total{")
    with trace.open() as lines:
        seen = Counter(json.loads(line).get("request_id") for line in lines)
    missing = [one for phase in phases for one in phase.ids if seen[one] != 1]
    print(f"{requests} requests = {outcomes} exchanges + {skipped} not recorded; {seen.total()} records")
    print({name: value for name, value in counts.items() if value and ("drop" in name or "not_recorded" in name)})
    if outcomes + skipped != requests:
        yield "requests, exchanges and those that are not recorded do not add up"
    if missing:
        yield f"{len(missing)} honest requests have not one record each, the first of them {missing[0]}"


def faults_of_phases(alone, mixed, samples):
    if alone.failures or mixed.failures:
        yield f"honest streams failed: {alone.failures} {mixed.failures}"
    if mixed.percentile(0.99) > 2 * alone.percentile(0.99):
        yield "honest requests wait more than twice as long"
    half = samples[len(samples) // 2 :]
    for name, at in (("play", 0), ("tap", 1)):
        sizes = [sample[at] for sample in half]
        # One costly request on its way takes hundreds of MB, and a sample meets it or does not: what stays is in the median.
        before, after = (statistics.median(part) for part in (sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]))
        if after > before * 1.2 + 50:
            yield f"memory of {name} grew from {before} to {after} MB"
        if max(sizes) > MOST_MEMORY_MB:
            yield f"{name} took {max(sizes)} MB"


def main():
    binary, seconds, streams = (sys.argv[1:] + ["600", "2000"])[:3]
    seconds, streams = int(seconds), int(streams)
    pace = ["--time-to-first-token", "100ms", "--inter-token-latency", "400ms"]
    with tempfile.TemporaryDirectory() as directory:
        trace, admin = Path(directory) / "soak.jsonl", servers.free_port()
        play = servers.play(binary, "--synthetic", "random", "--served-model-name", "m", *pace)
        with play, recording_tap(binary, play.url, trace, admin) as tap:
            port = int(tap.url.rsplit(":", 1)[1])
            phases = [Phase(port, max(seconds // 10, 30), streams, "alone")]
            asyncio.run(run(phases[0], (play, tap), False))
            phases.append(Phase(port, seconds, streams, "mixed"))
            samples = asyncio.run(run(phases[1], (play, tap), True))
            counts = counters(admin)
        for phase in phases:
            ttft = " ".join(f"p{share} {phase.percentile(share / 100):.0f}" for share in (50, 90, 99))
            print(f"{phase.name}: {len(phase.ids)} answered; time to first token in ms: {ttft}; costly {phase.costly()}")
        faults = [*faults_of_phases(*phases, samples), *faults_of_counts(counts, trace, phases)]
        faults += [f"exit codes {play.exit_code} {tap.exit_code}"] * (play.exit_code != 0 or tap.exit_code != 0)
    for fault in faults:
        print(f"FAILED: {fault}")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
