"""The phases: through the tap and back, played back, in time, and in a closed loop."""

import contextlib
import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import cases as requests
import clock
import compare
import servers
from client import Answer, Connection

LOAD = 8
ATTEMPTS = 5
STREAMS, STREAM_TOKENS = 32, 40
TURNS, TURN_TOKENS = 10, 24


@dataclass
class Recorded:
    """What the tap's clients sent and got, and where the trace is."""

    cases: list[requests.Case]
    answers: list[Answer]
    trace: Path


class Target:
    """A server under its address."""

    def __init__(self, host: str, port: int):
        self.host, self.port, self.connection = host, port, Connection(host, port)

    def send(self, case: requests.Case) -> Answer:
        try:
            return self.connection.exchange(case.method, case.path, case.headers, case.body)
        except (OSError, ValueError) as broken:
            self.connection.close()
            return Answer(0, [], f"no answer: {broken!r}".encode())

    def send_all(self, cases: list[requests.Case]) -> list[Answer]:
        return [self.send(case) for case in cases]

    def send_at_once(self, cases: list[requests.Case]) -> list[Answer]:
        return [stream.answer for stream in clock.measure(self.host, self.port, cases)]


def engine(run) -> Target:
    address = urlsplit(run.engine)
    return Target(address.hostname, address.port)


@contextlib.contextmanager
def behind(server: servers.Server, report):
    """The server as a target, and whether it ended well."""
    with server:
        yield Target("127.0.0.1", server.port)
    ended = [] if server.exit_code == 0 else [("exit code", 0, server.exit_code)]
    report.case(f"{server.command[1]} ends on SIGTERM", ended, ("expected", "got"))


def gather(run) -> list[requests.Case]:
    """The cases for this engine: the stops are taken from what it says."""
    probe = requests.Case("", "POST", requests.COMPLETIONS, requests.encode({
        "model": run.model, "prompt": "stop: The quick brown fox", "max_tokens": 12, "temperature": 0, "return_token_ids": True}), {"Content-Type": "application/json"})
    answer = engine(run).send(probe)
    if answer.status != 200:
        raise SystemExit(f"fidelity: the engine answers {answer.status}: {answer.body.decode()}")
    said = json.loads(answer.body)["choices"][0]
    configs = [Path(run.tokenizer, name) for name in ("generation_config.json", "config.json")]
    eos = next(config["eos_token_id"] for config in (json.loads(path.read_text()) for path in configs if path.exists()) if "eos_token_id" in config)
    listed = requests.transparent(run.model, said["token_ids"], said["text"], eos[0] if isinstance(eos, list) else eos)
    if run.parsers:
        listed += requests.parsed(run.model)
    return listed


def transparency(run, report) -> Recorded:
    """Through the tap clients get the bytes that they get without it."""
    report.begin("transparency")
    cases, straight, trace = gather(run), engine(run), run.out / "transparency.jsonl"
    at_once = requests.load(run.model, LOAD, 16, "at-once")
    for at in range(0, len(cases), LOAD):
        straight.send_at_once(cases[at : at + LOAD])
    direct = straight.send_all(cases)
    straight.send_at_once(at_once)
    direct_at_once = straight.send_at_once(at_once)
    through_tap = contextlib.nullcontext(straight) if run.self_check else behind(servers.tap(run, trace), report)
    with through_tap as target:
        through = target.send_all(cases)
        through_at_once = target.send_at_once(at_once)
        sent = list(zip(cases + at_once, direct + direct_at_once, through + through_at_once))
        again = [pair for pair in sent if only_framing_differs(*pair)]
        sent += [(replace(case, name=case.name + " again"), *pair) for case, *pair in settle(again, straight, target)]
    settled = {case.name.removesuffix(" again") for case, *pair in sent if not compare.transparent(case, *pair)}
    for case, left, right in sent:
        found = compare.transparent(case, left, right)
        if not (found and case.name.removesuffix(" again") in settled and only_framing_differs(case, left, right)):
            report.case(case.name, found, ("direct", "through"))
    report.number("cases sent again because the engine shared its tokens out differently", len(again))
    cases, through = [case for case, _, _ in sent], [answer for _, _, answer in sent]
    report.number("requests", len(cases))
    report.number("streams", sum(answer.streamed for answer in through))
    report.number("events", sum(len(answer.events) for answer in through if answer.streamed))
    report.number("bytes", sum(len(answer.body) for answer in through))
    if not run.self_check:
        recording(run, report, trace, cases)
    return Recorded(cases, through, trace)


def only_framing_differs(case: requests.Case, left: Answer, right: Answer) -> bool:
    """Whether two streams say the same in other events. A busy engine does that by itself: it puts tokens into one event
    when its front end lags behind, and interleaves choices as they come."""
    found = {what for what, _, _ in compare.transparent(case, left, right)}
    return bool(found) and found <= {"body", "chunks"} and left.streamed and compare.contents(left) == compare.contents(right)


def settle(pairs, straight: Target, target: Target):
    """Sends each case again, both ways, until the engine frames it twice alike; at most ATTEMPTS times."""
    for case, _, _ in pairs:
        for _ in range(ATTEMPTS):
            pair = straight.send(case), target.send(case)
            yield case, *pair
            if not compare.transparent(case, *pair):
                break


def recording(run, report, trace: Path, cases: list[requests.Case]) -> None:
    """The trace is whole and sound, and no generation request is missing."""
    records, _ = servers.records(trace)
    report.number("records", len(records))
    report.number("recorded tokens", sum(record.get("output_tokens", 0) for record in records))
    generated = [record for record in records if record.get("endpoint") != "other"]
    groups = len({record.get("group") or index for index, record in enumerate(generated)})
    sent = sum(case.path in (requests.CHAT, requests.COMPLETIONS) and case.method == "POST" for case in cases)
    report.case("one exchange recorded per generation request", [] if groups == sent else [("exchanges", sent, groups)], ("sent", "recorded"))
    checked = subprocess.run([run.binary, "inspect", "check", str(trace)], capture_output=True, text=True)
    report.case("inspect check", [] if checked.returncode == 0 else [("check", "exit 0", checked.stdout + checked.stderr)], ("expected", "got"))


def replay(run, report, recorded: Recorded) -> None:
    """Played back, clients get what they got through the tap; then once more, asking for every id."""
    report.begin("replay")
    sent = [(case, answer) for case, answer in zip(recorded.cases, recorded.answers) if case.kind == "generate"]
    with behind(servers.play(run, recorded.trace, "--instant"), report) as target:
        played = target.send_all([case for case, _ in sent])
    streams = []
    for (case, answer), again in zip(sent, played):
        if case.unplayable:
            report.aside(case.name, case.unplayable)
            continue
        report.case(case.name, compare.replayed(answer, again), ("recorded", "played"))
        if answer.streamed:
            streams.append((answer, compare.aspects(answer), compare.aspects(again)))
    report.number("streams compared", len(streams))
    report.number("their events", sum(len(answer.events) for answer, _, _ in streams))
    for what in ("text", "token ids", "reasons", "usage", "whole events"):
        report.number(f"streams with equal {what}", sum(left[what] == right[what] for _, left, right in streams))
    several = [(left, right) for _, left, right in streams if len(set(left["order of choices"])) > 1]
    report.number("streams of several choices", len(several))
    report.number("of these with the choices in the recorded order", sum(left["order of choices"] == right["order of choices"] for left, right in several))
    replay_ids(run, report, recorded, sent)


def replay_ids(run, report, recorded: Recorded, sent) -> None:
    """Every id and finish reason that is played is the recorded one."""
    report.begin("replayed ids")
    records = defaultdict(dict)
    for record in servers.records(recorded.trace)[0]:
        records[bare(record.get("request_id"))][record.get("choice") or 0] = record
    with behind(servers.play(run, recorded.trace, "--instant"), report) as target:
        played = target.send_all([case if case.unplayable else case.with_fields(return_token_ids=True) for case, _ in sent])
    tokens = 0
    for (case, answer), again in zip(sent, played):
        if case.unplayable:
            continue
        wanted = records[bare(next(iter(compare.json_events(answer)), {}).get("id"))]
        expected = {index: (one.get("output_token_ids"), one.get("finish_reason")) for index, one in wanted.items()}
        got = {index: (one["ids"], "stop" if one["reason"] == "tool_calls" else one["reason"]) for index, one in compare.choices(again).items()}
        report.case(case.name, [] if expected and expected == got else [("ids", expected, got)], ("recorded", "played"))
        tokens += sum(len(ids or []) for ids, _ in expected.values())
    report.number("tokens compared", tokens)


def bare(request_id: str | None) -> str:
    return (request_id or "").removeprefix("chatcmpl-").removeprefix("cmpl-")


def replay_errors(run, report, recorded: Recorded) -> None:
    """Requests that the engine refuses are refused in the same words."""
    report.begin("replayed errors")
    refused = [(case, answer) for case, answer in zip(recorded.cases, recorded.answers) if case.kind == "error"]
    with behind(servers.play(run, recorded.trace, "--instant"), report) as target:
        for case, answer in refused:
            report.case(case.name, compare.replayed(answer, target.send(case)), ("engine", "played"))


def timing(run, report) -> None:
    """Streams that ran at once, played at once, come when they came."""
    report.begin("timing")
    cases, trace = requests.load(run.model, STREAMS, STREAM_TOKENS, "load"), run.out / "timing.jsonl"
    with behind(servers.tap(run, trace), report) as target:
        lived = clock.measure(target.host, target.port, cases)
    by_id = {record["request_id"]: record for record in servers.records(trace)[0]}
    records = [by_id[case.headers["X-Request-Id"]] for case in cases]
    with behind(servers.play(run, trace), report) as target:
        clock.measure(target.host, target.port, requests.load(run.model, STREAMS, 1, "warm-up"))
        rounds = [clock.measure(target.host, target.port, cases) for _ in range(run.rounds)]
    report.number("streams at once", len(cases))
    report.number("tokens per round", sum(record["output_tokens"] for record in records))
    clock.table(report, "the client at the tap (what the record itself is worth)", records, [lived], judged=False)
    for number, one in enumerate(rounds):
        clock.table(report, f"replayed, round {number + 1}", records, [one], judged=False)
    clock.table(report, "replayed, all rounds", records, rounds, judged=True)
    for case, before, after in zip(cases, lived, rounds[0]):
        report.case("content of " + case.name, compare.replayed(before.answer, after.answer), ("recorded", "played"))


def loop(run, report) -> None:
    """An agent that builds each question on the last answer gets every recorded answer back."""
    report.begin("closed loop")
    trace = run.out / "loop.jsonl"
    with behind(servers.tap(run, trace), report) as target:
        recorded = converse(run, target, "recorded")
    with behind(servers.play(run, trace, "--instant"), report) as target:
        played = converse(run, target, "agent-of-its-own")
    for turn, (left, right) in enumerate(zip(recorded, played)):
        report.case(f"turn {turn}", [] if left == right else [("answer", left, right)], ("recorded", "played"))
    report.number("turns", len(recorded))
    report.number("characters", sum(len(one["text"]) for one in recorded))


def converse(run, target: Target, name: str) -> list[dict]:
    """The answers to a conversation whose every message is made from the answer before."""
    messages, answers = [{"role": "user", "content": "Begin the story of a river."}], []
    for turn in range(TURNS):
        body = {"model": run.model, "messages": messages, "max_tokens": TURN_TOKENS, "temperature": 0} | (requests.USAGE if turn % 2 else {})
        headers = {"Content-Type": "application/json", "X-Request-Id": f"{name}-{turn}"}
        answer = target.send(requests.Case("", "POST", requests.CHAT, requests.encode(body), headers))
        answers.append({"status": answer.status} | compare.choices(answer).get(0, {"text": "", "body": answer.body}))
        said = answers[-1]["text"]
        messages = messages + [{"role": "assistant", "content": said},
                               {"role": "user", "content": f"Turn {turn}: that was {len(said)} characters, the last of them {said[-6:]!r}. Go on."}]
    return answers
