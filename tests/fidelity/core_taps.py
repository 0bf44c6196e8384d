"""A real engine behind a front end, recorded by both taps at once: one before the front end, one between it and the engine."""

import collections
import json

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
            case = drawing.case(next(numbers))
            if case.path in GENERATING:
                cases.append((case, None))
    return cases


def sent(port: int, cases: list[tuple[Case, int | None]]) -> list[Answer]:
    connection = Connection("127.0.0.1", port)
    return [connection.exchange(case.method, case.path, case.headers, case.body, most) for case, most in cases]


OUTER, INNER, AGAIN = "outer.jsonl", "inner.jsonl", "again.jsonl"
# What both taps record of a request, where they know it.
FIELDS = ("model", "prompt_tokens", "cached_tokens", "output_tokens", "output_token_ids", "finish_reason", "stop_token", "prompt_hash", "block_hashes", "logprobs",
          "prompt_logprobs", "outcome")


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
    seen, known = (by_choice(servers.records(args.out / trace)[0]) for trace in (OUTER, INNER))
    counted, different, late = collections.Counter(), collections.defaultdict(list), []
    for name, one in seen.items():
        other = known.get(name)
        if other is None:
            # The front end refused it.
            counted["refused by the front end" if one.get("status") != 200 else "only before the front end"] += 1
            continue
        counted["in both"] += 1
        for field in FIELDS:
            left, right = one.get(field), other.get(field)
            if left is not None and left != right and (why := excuse(field, one, other)) != "":
                different[f"{field}{f' ({why})' if why else ''}"].append((name, left, right))
        late += lateness(one, other)
    counted["only behind the front end"] = len(known.keys() - seen.keys())
    print(", ".join(f"{count} {what}" for what, count in counted.items()))
    late.sort()
    if late:
        print(f"a token at the outer tap after the inner one: {late[len(late) // 2]:.1f} ms (median), {late[len(late) * 99 // 100]:.1f} ms (p99), least {late[0]:.1f} ms, of {len(late)}")
    return shown("the taps", different)


def by_choice(records: list[dict]) -> dict[tuple, dict]:
    """Records by the request's id as the client knows it, and the choice."""
    found = {}
    for record in sorted(records, key=lambda record: record["arrival_ms"]):
        name = record.get("request_id", "").removeprefix("chatcmpl-")
        prompt, choice = 0, record.get("choice", 0)
        if name.startswith("cmpl-"):
            name = name.removeprefix("cmpl-")
        found[name, prompt, choice] = record
    return found


def excuse(field: str, one: dict, other: dict) -> str | None:
    return None


def lateness(one: dict, other: dict) -> list[float]:
    return []


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
    return 0
