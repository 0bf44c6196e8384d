"""A real engine behind a front end, recorded by both taps at once: one before the front end, one between it and the engine."""

import collections
import dataclasses
import json
import re

import servers
from cases import CHAT, COMPLETIONS, Case, encode
from client import Answer, Connection
from compare import FINGERPRINT
from differential import contents, differences, masks, place
from draws import BATCH, GENERATE, INVOCATIONS, MESSAGES, RESPONSES, Drawing

GENERATING = (CHAT, COMPLETIONS, MESSAGES, RESPONSES, GENERATE, BATCH, INVOCATIONS)
# Every so many requests one is given up, after so many of its chunks.
GIVEN_UP, AFTER = 10, 4


def drawn(args) -> list[tuple[Case, int | None]]:
    """Requests that reach the engine, each with the chunks after which it is given up."""
    drawing, numbers, cases = Drawing(args.model, args.seed), iter(range(100 * args.requests)), []
    while len(cases) < args.requests:
        if len(cases) % GIVEN_UP == GIVEN_UP - 1:
            text = {"messages": [{"role": "user", "content": f"river {len(cases)}"}]} if len(cases) % 2 else {"prompt": f"river {len(cases)}"}
            body = text | {"model": args.model, "max_tokens": 200, "stream": True, "ignore_eos": True, "temperature": 0}
            path = CHAT if "messages" in text else COMPLETIONS
            cases.append((Case("given up", "POST", path, encode(body), {"Content-Type": "application/json"}), AFTER))
        else:
            case = drawing.case(number := next(numbers))
            if case.path in GENERATING:
                # Two requests of one name are not told apart.
                cases.append((dataclasses.replace(case, body=case.body.replace(b'"body-', b'"body-%d-' % number)), None))
    return cases


def sent(port: int, cases: list[tuple[Case, int | None]]) -> list[Answer]:
    connection = Connection("127.0.0.1", port)
    return [connection.exchange(case.method, case.path, case.headers, case.body, most) for case, most in cases]


OUTER, INNER, AGAIN = "outer.jsonl", "inner.jsonl", "again.jsonl"
# What both taps record of a request, where they know it.
FIELDS = ("model", "prompt_tokens", "cached_tokens", "output_tokens", "output_token_ids", "finish_reason", "stop_token", "prompt_hash", "block_hashes",
          "logprobs", "prompt_logprobs", "outcome")
# How the front end names the requests that it makes of one: by the prompt's number, after the id that clients know.
NAMES = re.compile(r"(?:chatcmpl-|generate-tokens-)?(resp_[0-9a-f]+|.+?)_(\d+)|cmpl-(.+)-(\d+)|(?:chatcmpl-|generate-tokens-)(.+)")


def compare(args) -> int:
    cases = drawn(args)
    recorded = record(args, cases)
    differing = traces(args) + play(args, cases, recorded)
    return 1 if differing else 0


def record(args, cases) -> list[Answer]:
    """Sends the requests to the real engine, before both taps."""
    waits, engines = servers.free_port(), servers.free_port()
    outer, inner = args.out / OUTER, args.out / INNER
    with servers.core_tap(args, waits, engines, inner), servers.real_core(args, engines, args.out / "engine.log"), \
            servers.front_end(args, waits, args.out / "front-end.log") as front:
        args.engine = f"http://127.0.0.1:{front.port}"
        with servers.tap(args, outer) as tap:
            return sent(tap.port, cases)


def play(args, cases, recorded: list[Answer]) -> int:
    """Sends them again, where the trace of the inner tap is behind the front end, and another tap between them."""
    waits, engines = servers.free_port(), servers.free_port()
    inner, again = args.out / INNER, args.out / AGAIN
    source = ["--replay-tokens", str(inner), "--tokenizer", args.tokenizer, "--served-model-name", args.model, "--max-model-len", "4096",
              "--num-gpu-blocks-override", "16384", "--block-size", "128", "--time-to-first-token", f"{args.step}ms", "--inter-token-latency", f"{args.step}ms"]
    with servers.core_tap(args, waits, engines, again), servers.play_core(args, engines, *source, log=args.out / "core.log"), \
            servers.front_end(args, waits, args.out / "front-end-again.log") as front:
        played = sent(front.port, cases)
    return answers(args, cases, recorded, played) + messages(inner, again)


# The two taps


def traces(args) -> int:
    """Compares what the taps recorded of each choice."""
    outer, inner = (servers.records(args.out / trace)[0] for trace in (OUTER, INNER))
    seen, known = {name: one for one in outer for name in [outer_name(one)]}, behind_front_end(inner)
    counted, different, late = collections.Counter(), collections.defaultdict(list), []
    for name, one in seen.items():
        other = known.pop(name, None)
        # An error of the front end may come after it has given some of the prompts to the engine, and one that is a stream's event has no id. Of a
        # batch the outer tap has the answer only.
        # A beam search is many requests of the front end.
        is_beam = other is None and any(base.startswith(f"{name[0]}-") and "-beam" in base for base, _ in known)
        is_refused = one["outcome"] == "error" or one["endpoint"] == "other" or is_beam
        if other is None or is_refused:
            counted["refused, batches or beam searches" if is_refused else "MISSED behind the front end"] += 1
            if not is_refused:
                different["record"].append((name, one, None))
            continue
        counted["compared"] += 1
        for field in FIELDS:
            left, right = comparable(field, one), comparable(field, other)
            if left is not None and left != right and not is_explained(field, one, other):
                different[field].append((name, one[field], other.get(field)))
        late += lateness(one, other)
    print(f"the taps: {', '.join(f'{count} {what}' for what, count in counted.items())}, {len(known)} behind the front end only "
          f"({dict(collections.Counter(record['outcome'] for record in known.values()))})")
    late.sort()
    at = [late[len(late) * share // 1000] for share in (0, 500, 990, 999)] if late else []
    print(f"a token is at the outer tap after the inner one: least, median, p99, p99.9 {[round(ms, 2) for ms in at]} ms, of {len(late)}")
    return shown("the taps", different)


def outer_name(record: dict) -> tuple:
    """The id that a client knows, and the choice."""
    # Of a response the client's header is not the front end's name.
    own = re.search(r'"id\\*":\\*"(resp_\w+)', json.dumps(record.get("response"))) if record["endpoint"] == "responses" else None
    name = own[1] if own else record.get("request_id") or ""
    return re.sub("^(chatcmpl-|cmpl-|generate-tokens-)", "", name), record.get("choice") or 0


def behind_front_end(records: list[dict]) -> dict[tuple, dict]:
    """Records by the same names. Of a request with several prompts and several choices of each, the choices count on."""
    named = collections.defaultdict(list)
    for record in records:
        found = NAMES.fullmatch(record["request_id"])
        base, prompt = (found[1] or found[3] or found[5], int(found[2] or found[4] or 0)) if found else (record["request_id"], 0)
        named[base].append((prompt, record.get("choice") or 0, record))
    return {(base, number): record for base, several in named.items() for number, (_, _, record) in enumerate(sorted(several, key=lambda one: one[:2]))}


def comparable(field: str, record: dict):
    """A field as both taps may know it: log probabilities without texts, which an engine has as ids, and without ranks."""
    value = record.get(field)
    if field == "logprobs" and value is not None:
        return [[number for number in token if isinstance(number, float)] for token in value["tokens"]]
    if field == "prompt_logprobs" and value is not None:
        return [token and [part for part in token if isinstance(part, (int, float))] for token in value["tokens"]]
    return value


def is_explained(field: str, one: dict, other: dict) -> bool:
    """Several choices have one usage, and several prompts without ids have none each. Of two likeliest tokens that are as likely a client sees one. A client that leaves has fewer tokens than the engine has made, and so has the text before a stop string; of tokens without ids the outer tap
    counts the events."""
    early = one["outcome"] == "client_gone" or other.get("stop_assumed")
    if field == "cached_tokens" and one.get("choice") is not None:
        return True
    if field in ("prompt_tokens", "output_tokens") and not one["prompt_tokens"]:
        return True
    if field == "logprobs" and one["logprobs"]["top"] < other["logprobs"]["top"]:
        shown = [seen == known[: len(seen)] for seen, known in zip(comparable(field, one), comparable(field, other))]
        return all(shown) and len(shown) == len(one["logprobs"]["tokens"])
    if field == "output_tokens" and one.get("stream") and not one.get("output_token_ids"):
        return True
    if field in ("output_tokens", "output_token_ids", "logprobs"):
        ids, made = one.get("output_token_ids") or [], other.get("output_token_ids") or []
        # Played, an assumed stop has a token for its end.
        both = min(len(ids), len(made)) if other.get("stop_assumed") else len(ids)
        return bool(early) and made[:both] == ids[:both]
    return bool(early) and field == "finish_reason" and one["outcome"] == "client_gone"


def lateness(one: dict, other: dict) -> list[float]:
    """Milliseconds from a token's time at the inner tap to that at the outer one, each since its request came there. Without ids the outer one has
    only what events show."""
    if not one.get("stream") or not one.get("output_token_ids"):
        return []
    times = [[record["ttft_ms"]] for record in (one, other)]
    for record, moments in zip((one, other), times):
        counts = record.get("itl_tokens") or [1] * len(record.get("itl_ms") or [])
        moments *= max(1, record["output_tokens"] - sum(counts))
        for gap, count in zip(record.get("itl_ms") or [], counts):
            moments += [moments[-1] + gap] * count
    return [outer - inner for outer, inner in zip(*times)]


def shown(what: str, different: dict) -> int:
    for kind, cases in sorted(different.items(), key=lambda item: -len(item[1])):
        print(f"{what}: {len(cases)} × {kind}")
        for name, left, right in cases[:3]:
            print(f"  {name}: {str(left)[:300]}\n    {str(right)[:300]}")
    return len(different)


# The trace, played


def answers(args, cases, recorded: list[Answer], played: list[Answer]) -> int:
    """Compares what clients got of the engine and of its trace."""
    patterns, same, by_contents, different = masks(ids=True), 0, 0, collections.defaultdict(list)
    for number, ((case, most), left, right) in enumerate(zip(cases, recorded, played)):
        if most:
            # The record ends with the tokens that the engine had made by then, its last one with a finish reason.
            left, right = (dataclasses.replace(answer, body=b"\n\n".join(answer.events[:-1])) for answer in (left, right))
        differing = differences(left, right, patterns)
        if not differing:
            same += 1
        elif contents(left, patterns) == contents(right, patterns):
            by_contents += 1
        else:
            what, one, other = differing[0]
            different[f"{case.path}{' given up' if most else ''}: {what}{place(one, other)}"].append((f"{number} {case.body[:300]!r}", left.body[-600:], right.body[-600:]))
    print(f"{same} of {len(cases)} answers equal to the byte, {by_contents} in events that are cut in other places")
    return shown("answers", different)


def messages(inner, again) -> int:
    """Compares what the taps before the real engine and before the played one recorded."""
    # What is given up at once may be before it is scheduled, or after.
    reached = lambda trace: [record for record in servers.records(trace)[0] if record["output_tokens"]]
    left, right = (sorted(reached(trace), key=lambda record: record["arrival_ms"]) for trace in (inner, again))
    different, fields = collections.defaultdict(list), (*FIELDS, "stream", "endpoint", "params", "choice", "preemptions")
    for number, (one, other) in enumerate(zip(left, right)):
        for field in fields:
            # A request that was given up ends with its record.
            is_end = field == "outcome" and one["outcome"] == "client_gone"
            if comparable(field, one) != comparable(field, other) and not is_explained(field, other, one) and not is_end:
                different[field].append((f"record {number}", one.get(field), other.get(field)))
    print(f"{len(left)} requests reached the real engine, {len(right)} the played one")
    return shown("messages", different) + (len(left) != len(right))
