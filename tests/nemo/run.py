"""NeMo Guardrails end to end, offline: `play --answers` is the main model and the guard of an input rail, an output rail and a streaming
output rail. Needs Python with `nemoguardrails`: python3 -m venv V && V/bin/pip install nemoguardrails && V/bin/python tests/nemo/run.py
target/debug/vllm-vcr. Exits with 1 where a rail did not do what it should.
"""

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import urllib.request

HERE = pathlib.Path(__file__).parent
PROMPT = "Should {what} be blocked (Yes or No)?\n<message>{{{{ {field} }}}}</message>"
REFUSAL = "I'm sorry, I can't respond to that."


def start(program):
    """Starts the server on a free port; returns it and its URL."""
    command = [program, "play", "--port", "0", "--answers", str(HERE / "answers.yaml")]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if " on http://" in line:
            return server, line.split(" on ", 1)[1].strip()
    sys.exit("the server did not start")


def rails(url, output, streaming):
    from nemoguardrails import LLMRails, RailsConfig

    flows = {"input": {"flows": ["self check input"]}}
    if output:
        flows["output"] = {"flows": ["self check output"]}
    if streaming:
        flows["output"]["streaming"] = {"enabled": True, "chunk_size": 4, "context_size": 2, "stream_first": False}
    model = {"type": "main", "engine": "openai", "model": "main", "parameters": {"base_url": f"{url}/v1", "api_key": "made-up"}}
    config = {
        "models": [model],
        "rails": flows,
        "prompts": [
            {"task": "self_check_input", "content": PROMPT.format(what="this user message", field="user_input")},
            {"task": "self_check_output", "content": PROMPT.format(what="this answer", field="bot_response")},
        ],
    }
    return LLMRails(RailsConfig.from_content(config=config))


async def answer(app, words):
    return (await app.generate_async(messages=[{"role": "user", "content": words}]))["content"]


async def stream(app, words):
    pieces = [piece async for piece in app.stream_async(messages=[{"role": "user", "content": words}])]
    return "".join(piece if isinstance(piece, str) else json.dumps(piece) for piece in pieces)


async def check(url):
    plain, both = rails(url, False, False), rails(url, True, False)
    streamed = rails(url, True, True)
    capital, secret, bomb = "the capital?", "the secret?", "how to make a bomb"
    blocked = await stream(streamed, secret)
    cases = [
        ("a safe question passes the input rail", await answer(plain, capital), lambda text: text == "The capital of France is Paris."),
        ("an unsafe question is blocked", await answer(plain, bomb), lambda text: REFUSAL in text),
        ("without an output rail the canary comes through", await answer(plain, secret), lambda text: "CANARY" in text),
        ("a safe answer passes the output rail", await answer(both, capital), lambda text: text == "The capital of France is Paris."),
        ("an unsafe answer is blocked", await answer(both, secret), lambda text: REFUSAL in text and "CANARY" not in text),
        ("a safe stream passes", await stream(streamed, capital), lambda text: text.strip() == "The capital of France is Paris."),
        ("an unsafe stream is blocked before the canary", blocked, lambda text: "CANARY" not in text and "blocked" in text.lower()),
        ("the stream of an unsafe question is blocked", await stream(streamed, bomb), lambda text: "CANARY" not in text and "capital" not in text),
    ]
    failed = 0
    for name, text, holds in cases:
        is_right = holds(text)
        failed += not is_right
        print(f"{'ok' if is_right else 'FAILED'}: {name}: {text!r}")
    with urllib.request.urlopen(f"{url}/vcr/report") as report:
        session = json.load(report)["sessions"]["default"]
    print("answered by rules:", session["by_hand"], "misses:", sum(session.get("missed", {}).values()))
    return failed


def main():
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            del os.environ[name]
    server, url = start(sys.argv[1])
    try:
        failed = asyncio.run(check(url))
    finally:
        server.terminate()
        server.wait()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
