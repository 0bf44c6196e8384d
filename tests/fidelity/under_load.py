"""Requests at given times against a server, what became of each, and what a tap recorded of them."""

import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from urllib.parse import urlparse


def workload(seed, count, rate, lengths=None):
    """Requests with their times: prompts of a few families that share prefixes, with some more tokens, of any number or of these."""
    draw, at, requests = random.Random(seed), 0.0, []
    families = [[draw.randrange(1000, 40000) for _ in range(draw.choice([128, 256] if lengths else [64, 128, 256, 320]))] for _ in range(6)]
    for number in range(count):
        at += draw.expovariate(rate)
        shared = draw.choice(families)
        own = [draw.randrange(1000, 40000) for _ in range(draw.choice(lengths or range(1, 121)))]
        requests.append((at, shared[: draw.choice([len(shared), len(shared), 64])] + own, draw.randint(2, 40)))
    return requests


def body_of(model, prompt, tokens):
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
            "return_token_ids": True, "stream_options": {"include_usage": True}}


def post(base, body, result, started):
    address = urlparse(base)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
    payload = json.dumps(body)
    result["sent"] = time.monotonic() - started
    connection.request("POST", "/v1/completions", payload, {"content-type": "application/json"})
    response = connection.getresponse()
    result["status"], buffer, tokens = response.status, b"", []
    while chunk := response.read1(65536):
        buffer += chunk
        *events, buffer = buffer.split(b"\n\n")
        now = time.monotonic() - started
        for event in events:
            text = event.removeprefix(b"data: ")
            if text == b"[DONE]" or not text.startswith(b"{"):
                continue
            parsed = json.loads(text)
            if parsed.get("choices") and parsed["choices"][0].get("token_ids") != []:
                tokens.append(now)
                result.setdefault("ids", []).extend(parsed["choices"][0]["token_ids"])
            if parsed.get("usage"):
                result["usage"] = parsed["usage"]
    result["tokens"] = tokens


def scrape(base, curve, started, stop):
    address = urlparse(base)
    while not stop.is_set():
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        gauge = lambda name: float(re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", page, re.M).group(1))
        curve.append((time.monotonic() - started, gauge("num_requests_running"), gauge("num_requests_waiting"), gauge("kv_cache_usage_perc")))
        stop.wait(0.25)


def load(base, model, requests, scrapes=None, watched=True):
    """Sends the requests to a server, each at its time; what became of each, and the gauges meanwhile where they are watched."""
    results, threads, curve, stop = [{} for _ in requests], [], [], threading.Event()
    started = time.monotonic() + 0.5
    scraper = threading.Thread(target=scrape if watched else stop.wait, args=(scrapes or base, curve, started, stop) if watched else ())
    scraper.start()
    for (at, prompt, tokens), result in zip(requests, results):
        time.sleep(max(0.0, started + at - time.monotonic()))
        threads.append(threading.Thread(target=post, args=(base, body_of(model, prompt, tokens), result, started)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    stop.set()
    scraper.join()
    return results, curve


def start(arguments):
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for line in process.stderr:
        if found := re.search(r"on (http://\S+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, found.group(1)
    sys.exit(f"{arguments[1]} does not start")


def quantile(values, share):
    return sorted(values)[round((len(values) - 1) * share)] * 1000 if values else 0.0


def figures(results):
    tokens = [result["tokens"] for result in results]
    ttft = [result["tokens"][0] - result["sent"] for result in results]
    gaps = [b - a for each in tokens for a, b in zip(each, each[1:])]
    end = [result["tokens"][-1] - result["sent"] for result in results]
    return {"TTFT p50": quantile(ttft, .5), "TTFT p90": quantile(ttft, .9), "ITL p50": quantile(gaps, .5), "ITL p90": quantile(gaps, .9),
            "E2E mean": statistics.fmean(end) * 1000}


def recorded(args, trace, flags, send):
    """Sends something to the real server through a tap; the trace, and what became of it."""
    trace.unlink(missing_ok=True)
    tap, base = start([args.binary, "tap", "--upstream", args.engine, "--listen", f"127.0.0.1:{args.port}", "--trace-out", str(trace), *flags])
    result = send(base)
    tap.terminate()
    tap.wait()
    return trace, result


def reset(base):
    """Empties the prefix cache of a server in development mode."""
    address = urlparse(base)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("POST", "/reset_prefix_cache")
    return connection.getresponse().status == 200
