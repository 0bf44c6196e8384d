"""What client libraries and curl must be able to do. Each function is one case; it gets the server's URL."""

import asyncio
import json
import subprocess

import openai

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def model(url):
    return client(url).models.list().data[0].id


def curl(url, *arguments):
    """The status and the body of one request."""
    command = ["curl", "-sS", "-w", "\n%{http_code}", *arguments, url]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    body, _, status = output.rpartition("\n")
    return int(status), body


def check_usage(usage):
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage


def chat(url):
    answer = client(url).chat.completions.create(model=model(url), messages=MESSAGES, max_tokens=16)
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    check_usage(answer.usage)


def chat_stream(url):
    stream = client(url).chat.completions.create(model=model(url), messages=MESSAGES, max_tokens=16, stream=True)
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks].count(None) == len(chunks) - 1
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def chat_stream_with_usage(url):
    stream = client(url).chat.completions.create(
        model=model(url), messages=MESSAGES, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    check_usage(chunks[-1].usage)


def completion(url):
    answer = client(url).completions.create(model=model(url), prompt=PROMPT, max_tokens=16)
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    assert answer.choices[0].text and answer.choices[0].finish_reason in ("stop", "length")
    check_usage(answer.usage)


def completion_stream(url):
    stream = client(url).completions.create(model=model(url), prompt=PROMPT, max_tokens=16, stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def max_tokens_is_honoured(url):
    answer = client(url).completions.create(model=model(url), prompt=PROMPT, max_tokens=2)
    assert answer.usage.completion_tokens == 2 and answer.choices[0].finish_reason == "length", answer


def two_choices(url):
    answer = client(url).chat.completions.create(model=model(url), messages=MESSAGES, max_tokens=8, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.finish_reason for choice in answer.choices)


def two_choices_streamed(url):
    stream = client(url).completions.create(model=model(url), prompt=PROMPT, max_tokens=8, n=2, stream=True)
    finished = [choice.index for chunk in stream for choice in chunk.choices if choice.finish_reason]
    assert sorted(finished) == [0, 1], finished


def streams_side_by_side(url):
    name = model(url)

    async def one(sdk):
        stream = await sdk.chat.completions.create(model=name, messages=MESSAGES, max_tokens=8, stream=True)
        return [chunk async for chunk in stream]

    async def many():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as sdk:
            return await asyncio.gather(*(one(sdk) for _ in range(16)))

    assert all(chunks[-1].choices[0].finish_reason for chunks in asyncio.run(many()))


def a_client_that_leaves(url):
    stream = client(url).chat.completions.create(model=model(url), messages=MESSAGES, stream=True)
    next(iter(stream))
    stream.close()
    assert model(url)


def unknown_model(url):
    try:
        client(url).chat.completions.create(model="no-such-model", messages=MESSAGES)
    except openai.NotFoundError as error:
        assert error.body["type"] == "NotFoundError" and "no-such-model" in error.body["message"], error.body
        return
    raise AssertionError("an unknown model was accepted")


def refused_parameters(url):
    for wrong in ({"max_tokens": 0}, {"temperature": -1.0}, {"n": 0}):
        try:
            client(url).completions.create(model=model(url), prompt=PROMPT, **wrong)
        except openai.BadRequestError as error:
            assert error.status_code == 400 and error.body["message"], wrong
        else:
            raise AssertionError(f"{wrong} was accepted")


def curl_streams(url):
    body = json.dumps({"messages": MESSAGES, "max_tokens": 4, "stream": True})
    status, text = curl(f"{url}/v1/chat/completions", "-N", "-H", "content-type: application/json", "-d", body)
    assert status == 200, text
    events = [event for event in text.split("\n\n") if event.strip()]
    assert all(event.startswith("data: ") for event in events) and events[-1].strip() == "data: [DONE]"


def curl_errors(url):
    assert curl(f"{url}/nowhere") == (404, '{"detail":"Not Found"}')
    assert curl(f"{url}/v1/chat/completions") == (405, '{"detail":"Method Not Allowed"}')
    status, text = curl(f"{url}/v1/completions", "-H", "content-type: application/json", "-d", "{not json")
    assert status == 400 and json.loads(text)["error"]["code"] == 400, text


def curl_tokens(url):
    header = ("-H", "content-type: application/json", "-d")
    status, text = curl(f"{url}/tokenize", *header, json.dumps({"prompt": PROMPT, "add_special_tokens": False}))
    assert status == 200, text
    ids = json.loads(text)["tokens"]
    status, text = curl(f"{url}/detokenize", *header, json.dumps({"tokens": ids}))
    assert status == 200 and json.loads(text)["prompt"] == PROMPT, text


def curl_facts(url):
    assert curl(f"{url}/health") == (200, "")
    status, text = curl(f"{url}/version")
    assert status == 200 and json.loads(text)["version"], text


ALL = [
    chat,
    chat_stream,
    chat_stream_with_usage,
    completion,
    completion_stream,
    max_tokens_is_honoured,
    two_choices,
    two_choices_streamed,
    streams_side_by_side,
    a_client_that_leaves,
    unknown_model,
    refused_parameters,
    curl_streams,
    curl_errors,
    curl_tokens,
    curl_facts,
]
