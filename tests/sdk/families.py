"""The APIs beside chat and completions: what the Anthropic SDK and the OpenAI SDK's responses must be able to do."""

import json

import anthropic
import openai
from cases import MESSAGES, client, curl, model

QUESTION = MESSAGES[0]["content"]


def claude(url):
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)


def messages(url):
    answer = claude(url).messages.create(model=model(url), messages=MESSAGES, max_tokens=8)
    assert answer.type == "message" and answer.role == "assistant", answer
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0


def messages_stream(url):
    with claude(url).messages.stream(model=model(url), messages=MESSAGES, max_tokens=8) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text and final.content[0].text == text, final
    assert final.stop_reason in ("end_turn", "max_tokens") and final.usage.output_tokens > 0


def message_events(url):
    events = claude(url).messages.create(model=model(url), messages=MESSAGES, max_tokens=4, stream=True)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds


def message_blocks(url):
    history = [
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Paris."}]},
        {"role": "user", "content": "And of Italy?"},
    ]
    answer = claude(url).messages.create(model=model(url), system="Be brief.", messages=history, max_tokens=4)
    assert answer.content[0].text


def count_tokens(url):
    counted = claude(url).messages.count_tokens(model=model(url), messages=MESSAGES)
    answer = claude(url).messages.create(model=model(url), messages=MESSAGES, max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens, counted


def message_errors(url):
    try:
        claude(url).messages.create(model="no-such-model", messages=MESSAGES, max_tokens=4)
    except anthropic.NotFoundError as error:
        assert error.body["type"] == "error" and error.body["error"]["type"] == "NotFoundError", error.body
    else:
        raise AssertionError("an unknown model was accepted")
    try:
        claude(url).messages.create(model=model(url), messages=MESSAGES, max_tokens=0)
    except anthropic.BadRequestError as error:
        assert "max_tokens must be positive" in error.body["error"]["message"], error.body
    else:
        raise AssertionError("no tokens were accepted")


def response(url):
    answer = client(url).responses.create(model=model(url), input=QUESTION, max_output_tokens=8)
    assert answer.output_text and answer.status in ("completed", "incomplete"), answer
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def response_stream(url):
    sdk = client(url)
    with sdk.responses.stream(model=model(url), input=QUESTION, max_output_tokens=8) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text and final.output_text == text, final


def response_items(url):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of Italy?"},
    ]
    answer = client(url).responses.create(
        model=model(url), instructions="Be brief.", input=items, max_output_tokens=4, metadata={"a": "b"}
    )
    assert answer.output_text and answer.metadata == {"a": "b"}, answer


def no_response_is_kept(url):
    for ask in (client(url).responses.retrieve, client(url).responses.cancel):
        try:
            ask("resp_1")
        except openai.NotFoundError as error:
            assert error.body["param"] == "response_id", error.body
        else:
            raise AssertionError("a response was kept")


def tokens_in_and_out(url):
    body = json.dumps({"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 3}})
    status, text = curl(f"{url}/inference/v1/generate", "-H", "content-type: application/json", "-d", body)
    assert status == 200 and len(json.loads(text)["choices"][0]["token_ids"]) == 3, text


def a_batch(url):
    body = json.dumps({"messages": [MESSAGES, MESSAGES], "max_tokens": 4})
    status, text = curl(f"{url}/v1/chat/completions/batch", "-H", "content-type: application/json", "-d", body)
    assert status == 200 and [choice["index"] for choice in json.loads(text)["choices"]] == [0, 1], text


ALL = [
    messages,
    messages_stream,
    message_events,
    message_blocks,
    count_tokens,
    message_errors,
    response,
    response_stream,
    response_items,
    no_response_is_kept,
    tokens_in_and_out,
    a_batch,
]
