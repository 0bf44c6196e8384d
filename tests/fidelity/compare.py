"""What two answers differ in, once everything that no two runs share is masked."""

import json
import re

from client import Answer

MASKS = [
    (re.compile(rb"\b(chatcmpl-tool-|chatcmpl-|cmpl-|modelperm-|call_)[0-9a-f]{16,32}\b"), rb"\1MASKED"),
    (re.compile(rb'("created": ?)\d+'), rb"\1MASKED"),
]
FINGERPRINT = (re.compile(rb'("system_fingerprint": ?)"[^"]*"'), rb'\1"MASKED"')
UNSTABLE_HEADERS = {"date", "content-length"}


def masked(data: bytes, engine: bool = True) -> bytes:
    """`data` without ids and times; `engine` tells whether the engine's fingerprint has to be the same."""
    for pattern, replacement in MASKS if engine else MASKS + [FINGERPRINT]:
        data = pattern.sub(replacement, data)
    return data


def headers(answer: Answer, ids_sent: bool) -> list[tuple[str, str]]:
    """Name and value in order; of the unstable ones only the name, and a content-length only when it is wrong."""
    listed = []
    for name, value in answer.headers:
        if name.lower() == "content-length":
            listed.append((name, "right" if not answer.body or int(value) == len(answer.body) else f"WRONG {value}"))
        elif name.lower() == "date" or (name.lower() == "x-request-id" and not ids_sent):
            listed.append((name, "MASKED"))
        else:
            listed.append((name, value))
    return listed


def transparent(case, direct: Answer, through: Answer) -> list[tuple[str, object, object]]:
    """(what, direct, through the tap) of everything that differs, down to the chunks of the body."""
    ids_sent = "X-Request-Id" in case.headers
    pairs = [("status", (direct.interim, direct.status), (through.interim, through.status)),
             ("headers", sorted(headers(direct, ids_sent)), sorted(headers(through, ids_sent))),
             ("header order", [name for name, _ in direct.headers], [name for name, _ in through.headers])]
    if case.kind != "other":
        pairs.append(("meant to be", case.kind, "generate" if direct.status == 200 else "error"))
    if case.path != "/metrics":
        pairs += [("body", b"".join(sorted_chunks(direct)), b"".join(sorted_chunks(through))), ("chunks", framing(direct), framing(through))]
    return [pair for pair in pairs if pair[1] != pair[2]]


def sorted_chunks(answer: Answer) -> list[bytes]:
    """The masked pieces of a body. In a stream of several choices, which no engine interleaves twice alike, those of the
    first choice come first."""
    pieces = (answer.chunks if answer.streamed else None) or [answer.body]
    return [masked(piece) for piece in sorted(pieces, key=lambda piece: choice_of(read(piece.rstrip(b"\n"))))]


def framing(answer: Answer) -> object:
    """How the body was cut: a stream's chunks, else whether there were any."""
    return sorted_chunks(answer) if answer.streamed else answer.chunks is not None


def contents(answer: Answer) -> object:
    """What an answer says, however its tokens were shared out among events."""
    usage = next((event["usage"] for event in reversed(json_events(answer)) if event.get("usage")), None)
    return (answer.status, choices(answer), usage) if choices(answer) else masked(answer.body)


def replayed(recorded: Answer, played: Answer) -> list[tuple[str, object, object]]:
    """(what, recorded, played) of everything that differs; contents apart from whole events. The order in which choices
    take turns is no content."""
    first, second = aspects(recorded), aspects(played)
    found = [(what, first[what], second[what]) for what in first if first[what] != second[what] and what != "order of choices"]
    if recorded.streamed and (played.chunks or []) != [event + b"\n\n" for event in played.events]:
        found.append(("one chunk per event", len(played.events), len(played.chunks or [])))
    return found


def aspects(answer: Answer) -> dict[str, object]:
    """The parts of an answer that are compared one by one; those of different choices apart from each other."""
    parts = {"text": [], "token ids": [], "reasons": [], "usage": []}
    order = []
    for event in json_events(answer):
        for choice in event.get("choices") or []:
            said = choice.get("delta") or choice.get("message") or choice
            index = choice.get("index")
            order.append(index)
            spoken = {key: said[key] for key in ("role", "content", "text", "reasoning", "tool_calls") if key in said}
            parts["text"].append((index, masked(json.dumps(spoken).encode())))
            parts["token ids"].append((index, choice.get("token_ids"), choice.get("prompt_token_ids", event.get("prompt_token_ids"))))
            parts["reasons"].append((index, choice.get("finish_reason"), choice.get("stop_reason")))
        parts["usage"].append((choice_of(event), event.get("usage")))
    whole = answer.events if answer.streamed else [answer.body]
    parts["whole events"] = [(choice_of(read(event)), masked(event, engine=False)) for event in whole]
    by_choice = {what: [entry[1:] for entry in sorted(entries, key=lambda entry: entry[0])] for what, entries in parts.items()}
    by_choice["whole events"] = [event for event, in by_choice["whole events"]]
    return {"status": answer.status, "content type": answer.header("content-type")} | by_choice | {"order of choices": order}


def choice_of(event: dict) -> int:
    """The choice that an event belongs to; the last of all where it belongs to none."""
    made = event.get("choices") or []
    return made[0].get("index", 0) if made else 1 << 30


def read(event: bytes) -> dict:
    """The JSON object of an event or a body; empty where there is none."""
    try:
        value = json.loads(event.removeprefix(b"data: "))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def json_events(answer: Answer) -> list[dict]:
    """The JSON objects of a stream's events, or the one of a plain body."""
    return [value for value in map(read, answer.events if answer.streamed else [answer.body]) if value]


def choices(answer: Answer) -> dict[int, dict]:
    """Per choice what came out in all: its text, token ids and finish reason."""
    made: dict[int, dict] = {}
    for event in json_events(answer):
        for choice in event.get("choices") or []:
            one = made.setdefault(choice.get("index", 0), {"text": "", "ids": [], "reason": None})
            said = choice.get("delta") or choice.get("message") or choice
            one["text"] += said.get("content") or said.get("text") or ""
            one["ids"] += choice.get("token_ids") or []
            one["reason"] = choice.get("finish_reason") or one["reason"]
    return made


def excerpt(left, right, width: int = 160) -> tuple[str, str]:
    """Both sides around the first place where they differ."""
    if isinstance(left, list) and isinstance(right, list):
        at = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
        sides = [f"[{at} of {len(side)}] " + (show(side[at]) if at < len(side) else "(none)") for side in (left, right)]
    else:
        sides = [show(left), show(right)]
    at = next((i for i, (a, b) in enumerate(zip(*sides)) if a != b), 0) if len(sides[0]) + len(sides[1]) > 2 * width else 0
    start = max(0, at - width // 2)
    return tuple(("…" if start else "") + side[start : start + width] + ("…" if len(side) > start + width else "") for side in sides)


def show(value) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else repr(value)
