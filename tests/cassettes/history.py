"""A client with a random history: requests that repeat, fail, are tried again and are left early. Prints what each call got."""

import http.client
import json
import os
import random
from urllib.parse import urlsplit

WORDS = ["a", "b", "flaky c", "flaky d", "bad", "fail"]


def call(base, words, stream, leaves_after, count):
    """One try: its status and what came of its answer until the client left."""
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "stream": stream}
    headers = {"content-type": "application/json", "x-stainless-retry-count": str(count)}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if not (stream and answer.status == 200):
        got = json.loads(answer.read())
        choice = got.get("choices", [{}])[0].get("message", got.get("error"))
        connection.close()
        return answer.status, choice
    events = []
    while leaves_after is None or len(events) < leaves_after:
        line = answer.readline()
        if not line:
            break
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            events.append(json.loads(line[6:])["choices"][0]["delta"])
        elif line.startswith(b"data: "):
            events.append("[DONE]")
    # The answer holds the socket too.
    answer.close()
    connection.close()
    return answer.status, events


def main(seed):
    chance = random.Random(seed)
    base = urlsplit(os.environ["OPENAI_BASE_URL"])
    for _ in range(12):
        words, stream = chance.choice(WORDS), chance.random() < 0.6
        leaves_after = chance.randrange(1, 6) if chance.random() < 0.5 else None
        tries = chance.randrange(1, 4)
        for count in range(tries):
            status, got = call(base, words, stream, leaves_after, count)
            print(json.dumps([words, stream, leaves_after, count, status, got]), flush=True)
            if status not in (429, 500):
                break


main(int(os.environ["SEED"]))
