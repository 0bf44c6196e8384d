"""What is equal and what is not between two answers to a drawn request."""

import json
import re

from client import Answer

JOINED = {"content", "text", "reasoning", "delta", "thinking", "partial_json", "arguments"}
GENERATED = (re.compile(rb'"(chatcmpl-tool-|chatcmpl-|cmpl-|generate-tokens-|msg_|resp_|rs_|fc_|call_|toolu_|item_)[0-9a-f-]{8,40}"'), rb'"\1MASKED"')
BARE = (re.compile(rb'("(?:id|request_id|item_id|call_id)": ?")[0-9a-f-]{8,40}"'), rb'\1MASKED"')
TIMES = (re.compile(rb'("(?:created|created_at|completed_at)": ?)[\d.]+'), rb"\g<1>0")
SIGNATURES = (re.compile(rb'("(?:signature|encrypted_content)": ?")[^"]*"'), rb'\1MASKED"')
CACHED = (re.compile(rb'("(?:cached_tokens|cache_read_input_tokens|cache_creation_input_tokens)": ?)\d+'), rb"\g<1>0")
ANY_ID = (re.compile(rb'"(chatcmpl-tool-|chatcmpl-|cmpl-|generate-tokens-|msg_|resp_)[^"]*"'), rb'"\1MASKED"')
REQUEST_ID = (re.compile(rb'("(?:id|request_id)": ?")[^"]*"'), rb'\1MASKED"')


def masks(cached: bool = False, ids: bool = False) -> list:
    """What no two answers share: generated ids, times and signatures. `cached`: also how much of the prompt the engine had
    cached. `ids`: also ids that the client chose, where the replay is asked with another one."""
    return [GENERATED, BARE, TIMES, SIGNATURES] + [CACHED] * cached + [ANY_ID, REQUEST_ID] * ids


def masked(data: bytes, patterns: list) -> bytes:
    for pattern, replacement in patterns:
        data = pattern.sub(replacement, data)
    return data


def differences(left: Answer, right: Answer, patterns: list) -> list[tuple[str, object, object]]:
    """(what, left, right) of everything that differs: status, content type, whole body, or each choice's events in order."""
    pairs = [("status", left.status, right.status), ("content type", left.header("content-type"), right.header("content-type"))]
    if left.streamed and right.streamed:
        sides = [by_choice(answer, patterns) for answer in (left, right)]
        pairs += [(f"events of {choice}", sides[0].get(choice), sides[1].get(choice)) for choice in sorted(set(sides[0]) | set(sides[1]))]
    else:
        pairs.append(("body", masked(left.body, patterns), masked(right.body, patterns)))
    return [pair for pair in pairs if pair[1] != pair[2]]


def by_choice(answer: Answer, patterns: list) -> dict[str, list[bytes]]:
    """The masked events of a stream, those of different choices apart from each other."""
    found: dict[str, list[bytes]] = {}
    for event in answer.events:
        choices = parsed(event).get("choices") or []
        name = f"choice {choices[0].get('index', 0)}" if choices and isinstance(choices[0], dict) else "the stream"
        found.setdefault(name, []).append(masked(event, patterns))
    return found


def parsed(event: bytes) -> dict:
    """The JSON object of an event or a body; empty where there is none."""
    try:
        value = json.loads(event[event.find(b"data: ") + 6 :] if b"data: " in event[:80] else event)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def contents(answer: Answer, patterns: list) -> object:
    """What an answer says, however its tokens were shared out among events."""
    if not answer.streamed:
        return answer.status, masked(answer.body, patterns)
    said: dict[tuple, object] = {}
    for event in map(parsed, (masked(event, patterns) for event in answer.events)):
        choice = (event.get("choices") or [{}])[0].get("index", 0) if event.get("choices") else 0
        gather(event, (choice,), said)
    return answer.status, sorted(said.items(), key=repr)


def gather(value, path: tuple, said: dict) -> None:
    """Adds to `said` what a part of an event says: texts and ids are joined, of all else the last that is not null counts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "choices":
                inner = {"0": inner[0]} if inner else None
            if key != "sequence_number":
                gather(inner, path + (key,), said)
    elif isinstance(value, str) and path[-1] in JOINED:
        said[path] = said.get(path, "") + value
    elif isinstance(value, list):
        said[path] = said.get(path, []) + value
    elif value is not None:
        said[path] = value


def shape(answer: Answer) -> object:
    """Status, content type, and which forms of objects an answer consists of; for answers that the engine gives
    differently each time."""
    events = answer.events if answer.streamed else [answer.body]
    return answer.status, answer.header("content-type"), sorted({json.dumps(form(parsed(event))) for event in events})


def form(value):
    """The keys of objects; no values, no lengths."""
    if isinstance(value, dict):
        return {key: form(inner) for key, inner in value.items() if isinstance(inner, (dict, list)) or key in ("object", "type", "choices")}
    if isinstance(value, list):
        return [form(value[0])] if value and isinstance(value[0], dict) else []
    return None


def place(left, right) -> str:
    """Where two sides differ first, as a path without positions; groups differences of one kind."""
    if isinstance(left, list) and isinstance(right, list):
        left, right = next(((a, b) for a, b in zip(left, right) if a != b), (None, None))
        if left is None:
            return "number of events"
    if not isinstance(left, bytes) or not isinstance(right, bytes):
        return ""
    return differing(parsed(left), parsed(right)) or "bytes"


def differing(left, right) -> str | None:
    if left == right:
        return None if repr(left) == repr(right) else "(order or type)"
    if isinstance(left, dict) and isinstance(right, dict):
        for key in list(left) + [key for key in right if key not in left]:
            if key not in left or key not in right:
                return f".{key} (only {'left' if key in left else 'right'})"
            if found := differing(left[key], right[key]):
                return f".{key}{found}"
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return "[] (length)"
        return next(("[]" + found for a, b in zip(left, right) if (found := differing(a, b))), "")
    return f" ({kind(left)}, {kind(right)})" if kind(left) != kind(right) else " (value)"


def kind(value) -> str:
    return "null" if value is None else type(value).__name__
