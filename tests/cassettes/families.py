"""What the scripted engine answers to `/v1/messages` and `/v1/responses`: a call of the tool where a city is named, else a text."""

import re

CITIES = re.compile(r"\bin\s(London|Paris)\b")


def text_of(content):
    """The text of a message's content, whole or in parts."""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def city(text):
    """The city that a question names."""
    found = CITIES.search(text)
    return found and found[1]


def pieces(text):
    """A text as it is streamed."""
    return text.replace(" ", " \0").split("\0")


def message(body, number):
    """The answer of `/v1/messages` and its events."""
    last = body["messages"][-1]["content"]
    results = [block for block in last if block["type"] == "tool_result"] if isinstance(last, list) else []
    asked = " and ".join(text_of(block["content"]) for block in results) or text_of(last)
    if body.get("tools") and not results and city(asked):
        block = {"type": "tool_use", "id": f"toolu_{number:016x}", "name": "weather", "input": {"city": city(asked)}}
        empty, stop = {**block, "input": {}}, "tool_use"
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ('{"city": ', f'"{city(asked)}"}}')]
    else:
        block = {"type": "text", "text": f"It is {asked}.\nTake an umbrella."}
        empty, stop = {**block, "text": ""}, "end_turn"
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    ends = {"stop_reason": stop, "stop_sequence": None}
    whole = {"id": f"msg_{number:016x}", "type": "message", "role": "assistant", "model": "m", "content": [block], **ends}
    started = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 0}}
    events = [
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        *[{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ends, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ]
    return {**whole, "usage": {"input_tokens": 3, "output_tokens": 4}}, events


def response(body, number):
    """The answer of `/v1/responses` and its events."""
    last = body["input"] if isinstance(body["input"], str) else body["input"][-1]
    is_result = isinstance(last, dict) and last.get("type") == "function_call_output"
    asked = text_of(last if isinstance(last, str) else last["output"] if is_result else last["content"])
    if body.get("tools") and not is_result and city(asked):
        arguments = f'{{"city": "{city(asked)}"}}'
        item = {"type": "function_call", "id": f"fc_{number:016x}", "call_id": f"call_{number:016x}", "name": "weather"}
        item |= {"arguments": arguments, "status": "completed"}
        within = call_events(item["id"], arguments)
        begun = {**item, "arguments": "", "status": "in_progress"}
    else:
        part = {"type": "output_text", "text": f"It is {asked}.\nTake an umbrella.", "annotations": [], "logprobs": None}
        item = {"type": "message", "id": f"msg_{number:016x}", "role": "assistant", "status": "completed", "content": [part]}
        within = text_events(item["id"], part)
        begun = {**item, "content": [], "status": "in_progress"}
    whole = {"id": f"resp_{number:016x}", "object": "response", "created_at": 1000 + number, "model": "m", "output": [item]}
    whole |= {"status": "completed", "error": None, "incomplete_details": None, "instructions": None, "metadata": None}
    whole |= {"parallel_tool_calls": True, "temperature": 1.0, "top_p": 1.0, "tool_choice": "auto", "tools": body.get("tools", [])}
    usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15}
    started = {**whole, "status": "in_progress", "output": [], "usage": None}
    events = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": begun},
        *[{"output_index": 0, **event} for event in within],
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**whole, "usage": usage}},
    ]
    return {**whole, "usage": usage}, [{**event, "sequence_number": at} for at, event in enumerate(events)]


def call_events(item, arguments):
    halves = [arguments[:9], arguments[9:]]
    deltas = [{"type": "response.function_call_arguments.delta", "item_id": item, "delta": half} for half in halves]
    done = {"type": "response.function_call_arguments.done", "item_id": item, "arguments": arguments, "name": "weather"}
    return [*deltas, done]


def text_events(item, part):
    place = {"item_id": item, "content_index": 0}
    deltas = [{"type": "response.output_text.delta", "delta": piece, "logprobs": [], **place} for piece in pieces(part["text"])]
    return [
        {"type": "response.content_part.added", "part": {**part, "text": ""}, **place},
        *deltas,
        {"type": "response.output_text.done", "text": part["text"], "logprobs": [], **place},
        {"type": "response.content_part.done", "part": part, **place},
    ]
