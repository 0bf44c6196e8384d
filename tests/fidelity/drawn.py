"""Drawn requests: sent straight, recorded in a trace and in a cassette, played from both, and compared."""

import base64
import contextlib
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import servers
import shrink
from cases import CHAT, Case, encode
from client import Answer, Connection
from compare import excerpt, show as shown
from differential import contents, differences, masks, place, shape

ATTEMPTS = 4
TRACE, CASSETTE, ANSWERS = "drawn.jsonl", "drawn.yaml", "answers.jsonl"
JSON = {"Content-Type": "application/json"}
# A comparison's name, the answer that is right, and the one that is held against it.
REPLAYS = {"index": ("tap", "index"), "prefix": ("tap", "prefix"), "cassette": ("cassette tap", "cassette")}


@dataclass
class Sent:
    """A request with every answer to it, by who gave it; and what differs, by comparison."""

    case: Case
    answers: dict[str, Answer] = field(default_factory=dict)
    found: dict[str, list] = field(default_factory=dict)
    varies: str | None = None


class Target:
    def __init__(self, host: str, port: int):
        self.connection = Connection(host, port)

    def send(self, case: Case) -> Answer:
        try:
            return self.connection.exchange(case.method, case.path, case.headers, case.body)
        except (OSError, ValueError) as broken:
            self.connection.close()
            return Answer(0, [], f"no answer: {broken!r}".encode())


def engine(run) -> Target:
    address = urlsplit(run.engine)
    return Target(address.hostname, address.port)


@contextlib.contextmanager
def running(server: servers.Server):
    with server:
        yield Target("127.0.0.1", server.port)
    if server.exit_code != 0:
        print(f"   {' '.join(server.command[:2])} ended with {server.exit_code}: see {server.log}")


def probe(run) -> None:
    """What the engine is: its model, tokenizer, parsers and fingerprint."""
    target = engine(run)
    answer = target.send(Case("", "GET", "/v1/models"))
    if answer.status != 200:
        raise SystemExit(f"fidelity: the engine answers {answer.status}: {answer.body.decode()}")
    card = json.loads(answer.body)["data"][0]
    run.model, run.tokenizer = card["id"], run.tokenizer or card["root"]
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "vllm_xargs": {"script": "<think>a</think>b"}}
    said = json.loads(target.send(Case("", "POST", CHAT, encode(chat), JSON)).body)
    run.parsers = said["choices"][0]["message"].get("reasoning") == "a"
    run.fingerprint = said.get("system_fingerprint")
    run.scale_out = target.send(Case("", "POST", "/inference/v1/generate", b"{}", JSON)).status != 403
    run.length = card["max_model_len"]
    print(f"engine: {run.model}, {'with' if run.parsers else 'without'} parsers, {'with' if run.scale_out else 'without'} scale-out endpoints")


# Recording


def record(run, cases: list[Case]) -> list[Sent]:
    """Sends every request straight and through both taps, one after another."""
    for name in (TRACE, CASSETTE):
        (run.out / name).unlink(missing_ok=True)
    sent = [Sent(case) for case in cases]
    straight = engine(run)
    with running(servers.tap(run, run.out / TRACE)) as tap, running(servers.tap_cassette(run, run.out / CASSETTE)) as keeper, \
            running(servers.tap(run, run.out / "again.jsonl")) as again:
        for number, one in enumerate(sent):
            one.answers = {"engine": alive(straight, one), "tap": tap.send(one.case), "cassette tap": keeper.send(one.case)}
            transparent(one, straight, again)
            if number % 50 == 49:
                print(f"   {number + 1} sent, {sum(bool(each.found) for each in sent)} differ", flush=True)
    save(run, sent)
    return sent


def alive(straight: Target, one: Sent) -> Answer:
    answer = straight.send(one.case)
    if answer.status in (0, 500) and straight.send(Case("", "GET", "/health")).status != 200:
        raise SystemExit(f"fidelity: the engine did not survive request {one.case.name}: {one.case.path} {one.case.body.decode(errors='replace')}")
    return answer


def transparent(one: Sent, straight: Target, again: Target) -> None:
    """Both taps give what the engine gives. Where they do not, the engine is asked again, straight and through a third tap: what it says differently
    itself, from one time to the next, is no difference of the tap; its shape is compared then."""
    patterns, right = masks(cached=True), one.answers["engine"]
    for who in ("tap", "cassette tap"):
        found = differences(right, one.answers[who], patterns)
        if found:
            one.found[who] = found
    if not one.found:
        return
    seen = [right]
    for _ in range(ATTEMPTS):
        seen.append(straight.send(one.case))
        other = again.send(one.case)
        if any(differences(seen[0], each, patterns) for each in seen[1:]):
            one.varies = "framing" if all(contents(seen[0], patterns) == contents(each, patterns) for each in seen[1:]) else "contents"
        if one.varies == "contents" or (one.varies or only_framing(one, patterns)) and not differences(right, other, patterns):
            break
    for who in list(one.found):
        if excused(one, one.answers[who], seen, patterns):
            del one.found[who]


def only_framing(one: Sent, patterns) -> bool:
    """Whether the same is said in other events."""
    return all(contents(one.answers["engine"], patterns) == contents(one.answers[who], patterns) for who in one.found)


def excused(one: Sent, answer: Answer, seen: list[Answer], patterns) -> bool:
    """Whether the engine itself gives such answers too."""
    if one.varies == "contents":
        return any(shape(answer) == shape(each) for each in seen)
    if contents(answer, patterns) == contents(seen[0], patterns) and answer.streamed:
        one.varies = one.varies or "framing"
        return True
    return False


# Playing


def play(run, sent: list[Sent]) -> None:
    """Plays both recordings to the same requests, in the order in which they were recorded."""
    trace = run.out / TRACE
    numbered = indexes(trace, sent)
    more = ["--instant"] + ["--enable-scale-out"] * run.scale_out
    more += ["--fingerprint-mode", "custom", "--fingerprint-value", run.fingerprint] if run.fingerprint else []
    with running(servers.play(run, trace, *more, match="index")) as target:
        for one, index in zip(sent, numbered):
            case = one.case if index is None else replace(one.case, headers=one.case.headers | {"X-Request-Id": f"replay-{index}"})
            one.answers["index"] = target.send(case)
    with running(servers.play(run, trace, *more)) as target:
        for one in sent:
            one.answers["prefix"] = target.send(one.case)
    with running(servers.play_cassette(run, run.out / CASSETTE)) as target:
        for one in sent:
            one.answers["cassette"] = target.send(one.case)
    for one in sent:
        for name, (right, other) in REPLAYS.items():
            if found := differences(one.answers[right], one.answers[other], masks(ids=name == "index")):
                one.found[name] = found


def indexes(trace: Path, sent: list[Sent]) -> list[int | None]:
    """The number of each request's first record, in order of arrival; None where it has none. The requests were sent one after another, so that their
    exchanges are in the trace in the same order."""
    records = sorted(servers.records(trace)[0], key=lambda record: record["arrival_ms"])
    exchanges: list[tuple[int, dict]] = []
    for index, record in enumerate(records):
        if record.get("group") is None or not exchanges or exchanges[-1][1].get("group") != record["group"]:
            exchanges.append((index, record))
    if len(exchanges) == len(sent):
        return [index for index, _ in exchanges]
    print(f"   {len(exchanges)} exchanges in the trace, {len(sent)} requests sent")
    left = iter(exchanges)
    return [next((index for index, _ in left), None) for _ in sent]


# Keeping


def save(run, sent: list[Sent]) -> None:
    """Everything that was sent and came, so that the recordings can be played again without the engine."""
    about = {name: getattr(run, name) for name in ("engine", "model", "tokenizer", "parsers", "fingerprint", "scale_out", "length", "seed", "count")}
    with (run.out / ANSWERS).open("w") as file:
        file.write(json.dumps(about) + "\n")
        for one in sent:
            answers = {who: {"status": answer.status, "headers": answer.headers, "body": base64.b64encode(answer.body).decode()} for who, answer in one.answers.items()}
            file.write(json.dumps({"name": one.case.name, "path": one.case.path, "headers": one.case.headers, "body": base64.b64encode(one.case.body).decode(),
                                   "answers": answers, "found": {who: [what for what, _, _ in found] for who, found in one.found.items()}, "varies": one.varies}) + "\n")


def load(run) -> list[Sent]:
    lines = (run.out / ANSWERS).read_text().split("\n")
    for name, value in json.loads(lines[0]).items():
        setattr(run, name, value)
    sent = []
    for line in filter(None, lines[1:]):
        kept = json.loads(line)
        one = Sent(Case(kept["name"], "POST", kept["path"], base64.b64decode(kept["body"]), kept["headers"]), varies=kept["varies"])
        one.answers = {who: Answer(answer["status"], [tuple(pair) for pair in answer["headers"]], base64.b64decode(answer["body"])) for who, answer in kept["answers"].items()}
        one.found = {who: differences(one.answers["engine"], one.answers[who], masks(cached=True)) for who in kept["found"]}
        sent.append(one)
    return sent


# Reporting


def findings(sent: list[Sent]) -> dict[tuple, list[Sent]]:
    """The requests that differ, by the kind of difference: the comparison, the endpoint, what, and where in it."""
    kinds: dict[tuple, list[Sent]] = defaultdict(list)
    for one in sent:
        for name, found in one.found.items():
            kinds[(name, one.case.path, *signature(found))].append(one)
    return dict(sorted(kinds.items(), key=lambda kind: -len(kind[1])))


def signature(found) -> tuple:
    what, left, right = found[0]
    return what, place(left, right) if what not in ("status", "content type") else f"{left} {right}"


def numbers(run, sent: list[Sent], kinds) -> dict:
    """Requests, and of each comparison how many are equal."""
    counted = {"seed": run.seed, "requests": len(sent), "status 200": sum(one.answers["engine"].status == 200 for one in sent),
               "streams": sum(one.answers["engine"].streamed for one in sent), "by endpoint": dict(Counter(one.case.path for one in sent)),
               "framed differently by the engine": sum(one.varies == "framing" for one in sent),
               "answered differently by the engine": sum(one.varies == "contents" for one in sent)}
    for name, sides in {"tap": "engine = tap", "cassette tap": "engine = cassette tap", "index": "tap = play by index", "prefix": "tap = play by prefix",
                        "cassette": "cassette tap = play of the cassette"}.items():
        equal = sum(name not in one.found for one in sent)
        counted[sides] = f"{equal} of {len(sent)} ({100 * equal / len(sent):.1f} %)"
    return counted


def show(run, kinds) -> None:
    """Every kind of difference with its smallest request and both sides."""
    for number, ((name, path, what, where), ones) in enumerate(kinds.items()):
        print(f"\n#### {name}: {path}: {what} {where}: {len(ones)} requests: {', '.join(one.case.name.split('/')[1] for one in ones[:20])}")
        one = min(ones, key=lambda one: len(one.case.body))
        case, found = one.case, one.found[name]
        if run.shrink and run.engine and not run.again:
            case, found = shrunk(run, one, name)
        print(f"     {case.method} {case.path} {json.dumps({key: value for key, value in case.headers.items() if key != 'Content-Type'})} {case.body.decode(errors='replace')[:1500]}")
        for what, left, right in found:
            sides = REPLAYS.get(name, ("engine", name))
            for side, text in zip(sides, excerpt(left, right, 320)):
                print(f"       {what}, {side}: {text}")


def shrunk(run, one: Sent, name: str) -> tuple[Case, list]:
    """The smallest request that differs alone in the same comparison."""
    last = {}

    def fails(case: Case) -> bool:
        if found := alone(run, case).get(name):
            if signature(found)[0].split(" ")[0] == signature(one.found[name])[0].split(" ")[0]:
                last[case.body] = found
                return True
        return False

    if not fails(one.case):
        print("     (not when it is sent alone)")
        return one.case, one.found[name]
    case, tries = shrink.smallest(one.case, fails, run.shrink)
    print(f"     (smallest of {tries})")
    return case, last.get(case.body, one.found[name])


def alone(run, case: Case) -> dict[str, list]:
    """What differs when only this request is sent, recorded and played."""
    inner = SimpleNamespace(**vars(run) | {"out": run.out / "shrink"})
    inner.out.mkdir(exist_ok=True)
    with contextlib.redirect_stdout(None):
        sent = record(inner, [case])
        play(inner, sent)
    return sent[0].found
