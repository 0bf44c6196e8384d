"""The requests: what every client of a vLLM server may send, good and bad."""

import json
from dataclasses import dataclass, field, replace

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
IDS = {"return_token_ids": True}
WEATHER_TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city"]}}}
WEATHER_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s", "unit": "C"}}\n</tool_call>'


@dataclass(frozen=True)
class Case:
    """One request. `kind` is "generate", "error" (a generation request that is refused) or "other";
    `unplayable` says why a replay cannot be held against the capture."""

    name: str
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = "generate"
    unplayable: str | None = None

    def with_fields(self, **fields) -> "Case":
        """The same request with other fields in its JSON body."""
        return replace(self, body=encode(json.loads(self.body) | fields))


def encode(value) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


class Builder:
    """Collects cases for one model; every case asks about something else, so that no two share a whole prompt."""

    def __init__(self, model: str):
        self.model, self.cases = model, []

    def add(self, name, method, path, body=None, headers=None, **about):
        again = sum(case.name.split(" #")[0] == name for case in self.cases)
        name += f" #{again + 1}" if again else ""
        self.cases.append(Case(name, method, path, body, headers or {}, **about))

    def post(self, name, path, body, headers=None, **about):
        headers = {"Content-Type": "application/json"} | (headers or {})
        self.add(name, "POST", path, body if isinstance(body, bytes) else encode(body), headers, **about)

    def chat(self, name, about=None, headers=None, **fields):
        messages = [{"role": "system", "content": "You are a helpful assistant."},
                    {"role": "user", "content": f"{name}: write about rivers. Résumé, 日本語, 🦀."}]
        body = {"model": self.model, "messages": messages, "max_tokens": 12, "temperature": 0} | fields
        self.post("chat " + name, CHAT, body, headers, **about or {})

    def completion(self, name, about=None, headers=None, **fields):
        body = {"model": self.model, "prompt": f"{name}: The quick brown fox", "max_tokens": 12, "temperature": 0} | fields
        self.post("completion " + name, COMPLETIONS, body, headers, **about or {})


def transparent(model: str, ids: list[int], text: str, eos: int) -> list[Case]:
    """All cases without parsers. The model answers "stop: The quick brown fox" with `ids`, which read `text`."""
    build = Builder(model)
    for stream, fields in (("", {}), (" stream", {"stream": True}), (" usage", USAGE)):
        _sampling(build, stream, fields)
        _stops(build, stream, fields, ids, text, eos)
    for add in (build.chat, build.completion):
        add("continuous usage", **CONTINUOUS)
        add("continuous usage only", stream=True, stream_options={"continuous_usage_stats": True})
        add("usage off", stream=True, stream_options={"include_usage": False})
        add("continuous ids", **CONTINUOUS, **IDS)
        add("ids refused", **USAGE, return_token_ids=False)
        add("long answer", **USAGE, max_tokens=150, ignore_eos=True)
        add("same prompt twice", **USAGE, temperature=1, seed=1)
        add("same prompt twice", **USAGE, temperature=1, seed=2)
    _shapes(build)
    _conversation(build)
    _errors(build)
    _others(build)
    return build.cases


def _sampling(build, stream, fields):
    for add in (build.chat, build.completion):
        add("plain" + stream, **fields)
        add("ids" + stream, **fields, **IDS)
        add("one token" + stream, **fields | {"max_tokens": 1})
        add("n2" + stream, **fields, n=2, seed=7, temperature=1)
        add("n2 ids" + stream, **fields, **IDS, n=2, seed=8, temperature=1)
    build.chat("logprobs" + stream, **fields, logprobs=True, top_logprobs=2)
    build.completion("logprobs" + stream, **fields, logprobs=2)


def _stops(build, stream, fields, ids, text, eos):
    stop, middle = {"prompt": "stop: The quick brown fox"}, len(text) // 2
    build.completion("stop string" + stream, **fields, **stop, stop=[text[middle : middle + 2]])
    build.completion("stop string ids" + stream, **fields, **IDS, **stop, stop=text[middle : middle + 3])
    build.completion("stop string included" + stream, **fields, **stop, stop=[text[middle : middle + 2]], include_stop_str_in_output=True)
    build.completion("stop string never met" + stream, **fields, stop=["no such text at all"])
    build.completion("stop token" + stream, **fields, **stop, stop_token_ids=[ids[4]])
    build.completion("stop token included" + stream, **fields, **stop, stop_token_ids=[ids[4]], include_stop_str_in_output=True)
    build.chat("early eos" + stream, **fields, logit_bias={str(eos): 100}, min_tokens=4)
    build.completion("eos at once" + stream, **fields, logit_bias={str(eos): 100})


def _shapes(build):
    echo = {"unplayable": "a completion that echoes its prompt is recorded without ids"}
    for stream, fields in (("", {}), (" stream", USAGE)):
        build.completion("list of prompts" + stream, **fields, prompt=["alpha beta", "gamma"])
        build.completion("prompt of ids" + stream, **fields, prompt=[785, 3974, 13876, 38835])
        build.completion("list of ids" + stream, **fields, prompt=[[785, 3974, 11], [785, 3974, 13, 14]], n=2, seed=3, temperature=1)
        build.completion("long prompt" + stream, **fields, prompt=f"long{stream} " + "river stone " * 400)
        build.completion("echo" + stream, echo, **fields, echo=True)
        build.chat("special tokens shown" + stream, **fields, skip_special_tokens=False)
        build.chat("parts" + stream, **fields, messages=[{"role": "user", "content": [{"type": "text", "text": "part" + stream}, {"type": "text", "text": "two"}]}])
        build.chat("request id" + stream, headers={"X-Request-Id": "fidelity-7" + stream.strip()}, **fields)
    build.completion("request id in body", **USAGE, request_id="body-5")
    build.chat("escapes in the body", **USAGE, user="\u2028 \\\" 🦀 \u0085")
    build.chat("spaced body", **USAGE)
    spaced = build.cases.pop()
    build.cases.append(replace(spaced, body=json.dumps(json.loads(spaced.body), indent=2).replace("true", " true ").encode()))
    build.chat("keys twice", {"unplayable": "the tap leaves a body with a key given twice alone, so no ids are told"}, stream=False)
    twice = build.cases.pop()
    build.cases.append(replace(twice, body=twice.body[:-1] + b', "stream": true, "stream": true}'))
    build.chat("chunked upload", headers={"Transfer-Encoding": "chunked"}, **USAGE)
    build.chat("expect continue", headers={"Expect": "100-continue"}, **USAGE)
    build.chat("connection close", headers={"Connection": "close"}, **USAGE)
    build.chat("no model", **USAGE)
    nameless = build.cases.pop()
    build.cases.append(replace(nameless, body=encode({k: v for k, v in json.loads(nameless.body).items() if k != "model"})))


def _conversation(build):
    messages = [{"role": "system", "content": "You are a patient guide. " * 12}]
    for turn, (question, answer) in enumerate([("Where does it start?", "In the hills."), ("And then?", "Through Zürich — 川."), ("Where does it end?", "")]):
        messages = messages + [{"role": "user", "content": question}]
        build.chat(f"turn {turn}", **USAGE, messages=messages)
        messages = messages + [{"role": "assistant", "content": answer}]


def _errors(build):
    error = {"kind": "error"}
    build.post("error bad json", CHAT, b'{"model": "x", "messages": [', **error)
    build.post("error empty body", CHAT, b"", **error)
    build.post("error body is a list", CHAT, b"[1, 2]", **error)
    build.post("error no messages", CHAT, {"model": build.model}, **error)
    build.post("error no prompt", COMPLETIONS, {"model": build.model}, **error)
    build.post("error content type", CHAT, b"{}", {"Content-Type": "text/plain"}, **error)
    for name, fields in (("unknown model", {"model": "no-such-model"}), ("max_tokens 0", {"max_tokens": 0}), ("max_tokens negative", {"max_tokens": -1}),
                         ("max_tokens text", {"max_tokens": "lots"}), ("max_tokens too large", {"max_tokens": 100000}), ("temperature", {"temperature": -1}),
                         ("stream text", {"stream": "perhaps"}), ("stream_options without stream", {"stream_options": {"include_usage": True}}),
                         ("n 0", {"n": 0}), ("top_p", {"top_p": 1.5})):
        build.chat("error " + name, error, **fields)
        build.completion("error " + name, error, **fields)
    build.chat("error messages wrong type", error, messages="hello")
    build.chat("error stream max_tokens 0", error, **USAGE | {"max_tokens": 0})
    build.chat("error ids wrong type", error, return_token_ids="maybe")
    build.completion("error prompt too long", error, prompt="river " * 5000)
    build.completion("error unknown token", error, prompt=[999999999])


def _others(build):
    other = {"kind": "other"}
    for path in ("/v1/models", "/health", "/version", "/metrics", "/ping", "/no/such/path", "/v1/models?x=%20y", CHAT, "//v1//models"):
        build.add("GET " + path, "GET", path, **other)
    build.add("HEAD /health", "HEAD", "/health", **other)
    build.add("DELETE /v1/models", "DELETE", "/v1/models", **other)
    build.add("OPTIONS", "OPTIONS", CHAT, headers={"Origin": "http://a.test", "Access-Control-Request-Method": "POST"}, **other)
    build.add("GET with X-Request-Id", "GET", "/health", headers={"X-Request-Id": "health-1"}, **other)
    build.post("tokenize", "/tokenize", {"model": build.model, "prompt": "Hello 世界 🦀"}, **other)
    build.post("detokenize", "/detokenize", {"model": build.model, "tokens": [785, 3974, 220]}, **other)


def parsed(model: str) -> list[Case]:
    """Tool calls and reasoning; needs an engine with parsers and with the scripted logits processor."""
    build = Builder(model)
    scripts = {
        "reasoning": "<think>\nLet me check the map.\n</think>\n\nHello there, friend.",
        "reasoning and tool": "<think>\nI need the weather.\n</think>\n\n" + WEATHER_CALL % "Paris",
        "two tools": "</think>Sure.\n" + WEATHER_CALL % "Paris" + "\n" + WEATHER_CALL % "Zürich 🦀",
        "no tool": '</think>Just a plain answer, {"not": "a call"}.',
        "broken tool": '</think><tool_call>\n{"name": "get_weather", "argum',
    }
    for name, script in scripts.items():
        for stream, fields in (("", {}), (" stream", {"stream": True}), (" usage", USAGE), (" continuous", CONTINUOUS), (" ids", USAGE | IDS)):
            build.chat(name + stream, **fields | {"max_tokens": 120}, tools=[WEATHER_TOOL], vllm_xargs={"script": script})
        build.chat(name + " hidden", {"unplayable": "beside hidden reasoning the engine tells no ids"}, **USAGE | {"max_tokens": 120}, include_reasoning=False, vllm_xargs={"script": script})
    return build.cases


def load(model: str, count: int, tokens: int, tag: str) -> list[Case]:
    """`count` streams to be sent at once, chat and completions in turn."""
    build = Builder(model)
    for index in range(count):
        add = build.chat if index % 2 else build.completion
        add(f"{tag} {index}", headers={"X-Request-Id": f"{tag}-{index}"}, **USAGE, ignore_eos=True, **{"max_tokens": tokens})
    return build.cases
