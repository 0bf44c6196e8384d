"""Requests drawn at random: every endpoint, every field, good values and bad ones. The same seed draws the same requests."""

import json
import random

from cases import CHAT, COMPLETIONS, WEATHER_TOOL, Case, encode

MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
TOKENIZE, DETOKENIZE, GENERATE = "/tokenize", "/detokenize", "/inference/v1/generate"
BATCH, INVOCATIONS = "/v1/chat/completions/batch", "/invocations"
WORDS = ("river stone hill the of a quick brown fox jumps over lazy dog Zürich naïve 日本語 川 🦀 👩‍👩‍👧 مرحبا שלום ½ \u2028 \u0085 e\u0301 ß 数学 "
         "<b> & \"quoted\" \\back\\ 12345 3.14 {json} [list] <think> </think> <|im_end|> def f(x): \t\n\n    ").split(" ")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s", "unit": "C"}}\n</tool_call>'
SCRIPTS = ["Hello there, friend.", "<think>\nLet me check the map.\n</think>\n\nHello there, friend.", "</think>Sure.\n" + CALL % "Paris",
           "<think>\nweather?\n</think>\n\n" + CALL % "Zürich 🦀" + "\n" + CALL % "Oslo", '</think><tool_call>\n{"name": "get_weather", "argum',
           "<think>never ends, 日本語 🦀 and on", "", "</think>", "a</think>b</think>c", 'text before <tool_call> not a call', "🦀🦀🦀 naïve ﬁ ½ 川",
           '</think><tool_call>\n{"name": "unknown_tool", "arguments": {}}\n</tool_call> after', "one\n\ntwo\n\nthree stop here now", "<think></think>x"]
BAD = [None, -1, 0, 1.5, "lots", "", [], {}, [1, "a"], True, 1 << 70, -0.5, {"type": "nonsense"}, [None], 1e308]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}}, "required": ["city"]}
WEIGHTS = {CHAT: 32, COMPLETIONS: 26, MESSAGES: 12, RESPONSES: 11, TOKENIZE: 5, DETOKENIZE: 3, GENERATE: 6, COUNT: 2, BATCH: 1, INVOCATIONS: 2}


class Drawing:
    """Draws requests for one engine. `vocabulary` is the model's, `known` the tokenizer's number of ids."""

    def __init__(self, model: str, seed: int, known: int = 151669, vocabulary: int = 151936):
        self.model, self.seed, self.known, self.vocabulary = model, seed, known, vocabulary
        self.drawn: list[tuple[str, dict]] = []

    def case(self, number: int) -> Case:
        """Request `number` of this seed; now and then the one before with another field."""
        self.rng = random.Random(f"{self.seed}/{number}")
        if self.drawn and self.chance(0.08):
            path, body = self.rng.choice(self.drawn[-20:])
            body = json.loads(json.dumps(body))
            self.optional(body, self.fields(path), 0.1)
        else:
            path = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            body = self.body(path)
        self.drawn.append((path, body))
        body = json.loads(json.dumps(body))
        if self.chance(0.14):
            self.spoil(body)
        headers = {"Content-Type": "application/json"}
        if self.chance(0.3):
            headers["X-Request-Id"] = f"drawn-{self.seed}-{number}"
        return Case(f"{self.seed}/{number}", "POST", path, self.bytes(body), headers)

    def bytes(self, body: dict) -> bytes:
        """As clients write it: compact, spaced, escaped; rarely not JSON at all."""
        if self.chance(0.01):
            return encode(body)[:-2]
        return self.rng.choice([lambda: json.dumps(body).encode(), lambda: encode(body), lambda: json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
                                lambda: json.dumps(body, indent=1).encode()])()

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def optional(self, body: dict, fields: dict, share: float) -> None:
        for name, draw in fields.items():
            if self.chance(share):
                body[name] = draw()

    def spoil(self, body: dict) -> None:
        """One wrong value, one field too few or one too many; but never an answer without a limit, which takes minutes."""
        kind = self.rng.random()
        if kind < 0.15:
            body.pop(self.rng.choice(list(body)))
        elif kind < 0.2:
            body["no_such_field"] = self.rng.choice(BAD)
        else:
            target = body
            if isinstance(body.get("sampling_params"), dict) and self.chance(0.5):
                target = body["sampling_params"]
            names = [name for name in list(target) + list(self.bad_names()) if name not in ("vllm_xargs", "seed")]
            target[self.rng.choice(names)] = self.rng.choice(BAD)
        for limit in ("max_tokens", "max_output_tokens"):
            if body.get(limit, 0) is None:
                body[limit] = 2
        if "input" in body:
            body.setdefault("max_output_tokens", 2)
        elif "messages" in body and "max_completion_tokens" not in body:
            body.setdefault("max_tokens", 2)

    def bad_names(self):
        return self.rng.sample(["temperature", "max_tokens", "n", "stop", "logprobs", "stream", "stream_options", "tools", "tool_choice", "top_k", "min_tokens",
                                "echo", "logit_bias", "messages", "prompt", "response_format", "stop_token_ids", "truncate_prompt_tokens", "user"], 6)

    # Texts, ids and messages

    def text(self, longest: int = 12) -> str:
        if self.chance(0.04):
            return ""
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, longest)))

    def script(self) -> str:
        return self.rng.choice(SCRIPTS) if self.chance(0.8) else self.text(16)

    def maybe_scripted(self, text: str) -> str:
        return f"{text} [[SCRIPT]]{self.script()}[[/SCRIPT]]" if self.chance(0.3) else text

    def ids(self, longest: int = 12) -> list[int]:
        highest = self.vocabulary - 1 if self.chance(0.05) else self.known - 1
        return [self.rng.choice([self.rng.randint(0, 2000), self.rng.randint(0, highest)]) for _ in range(self.rng.randint(1, longest))]

    def long(self) -> str:
        return self.text() + " " + self.rng.choice(["river stone ", "日本 ", "a b c "]) * self.rng.randint(60, 300)

    def content(self) -> object:
        text = self.long() if self.chance(0.05) else self.text()
        if self.chance(0.2):
            return [{"type": "text", "text": self.text()} for _ in range(self.rng.randint(1, 3))]
        return self.maybe_scripted(text)

    def messages(self) -> list[dict]:
        listed = [{"role": self.rng.choice(["system", "system", "developer"]), "content": self.text()}] if self.chance(0.4) else []
        for _ in range(self.rng.choice([0, 0, 0, 1, 2])):
            listed += [{"role": "user", "content": self.content()}, self.assistant()]
            if calls := listed[-1].get("tool_calls"):
                listed += [{"role": "tool", "tool_call_id": call["id"], "content": self.text()} for call in calls]
        listed.append({"role": "user", "content": self.content()})
        if self.chance(0.1):
            listed.append(self.assistant())
        if self.chance(0.05):
            listed[-1]["name"] = "Ann"
        return listed

    def assistant(self) -> dict:
        if self.chance(0.25):
            arguments = json.dumps({"city": self.rng.choice(["Paris", "Zürich 🦀"])}, ensure_ascii=self.chance(0.5))
            call = {"id": f"call_{self.rng.randint(1, 9)}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
            return {"role": "assistant", "content": self.rng.choice([None, "", "Let me look."]), "tool_calls": [call]}
        message = {"role": "assistant", "content": self.text()}
        if self.chance(0.2):
            message["reasoning"] = self.text()
        return message

    # Fields

    def sampling(self) -> dict:
        """Fields that chat, completions and token requests share. `seed` is left out: the engine on a CPU ends with it."""
        pick, rng = self.rng.choice, self.rng
        return {
            "temperature": lambda: pick([0, 0, 0, 0, 0.0, 1, 0.7]), "top_p": lambda: pick([1, 0.5, 0.9, 1.0]), "top_k": lambda: pick([-1, 0, 1, 5]),
            "min_p": lambda: pick([0, 0.1]), "presence_penalty": lambda: pick([0, 0.5, -1]), "frequency_penalty": lambda: pick([0, 1.5]),
            "repetition_penalty": lambda: pick([1, 1.2]), "stop": lambda: pick(["stop", ["e", "zz"], [" the", "\n\n"], "川", [], None, ["a", "b", "c", "d"]]),
            "stop_token_ids": lambda: pick([[], [151645], self.ids(3)]), "include_stop_str_in_output": lambda: pick([True, False]),
            "ignore_eos": lambda: pick([True, False]), "min_tokens": lambda: pick([0, 1, 3]), "n": lambda: pick([1, 1, 2, 3]),
            "skip_special_tokens": lambda: pick([True, False]), "spaces_between_special_tokens": lambda: pick([True, False]),
            "logit_bias": lambda: pick([{}, {str(rng.randint(0, 150000)): 100}, {"151645": 100}, {"151645": -100}, {"785": 5.5}]),
            "bad_words": lambda: pick([[], ["river"], [" the", "a"]]), "prompt_logprobs": lambda: pick([0, 1, 2]),
            "logprob_token_ids": lambda: pick([[], [785], [785, 151645, 11]]), "truncate_prompt_tokens": lambda: pick([-1, 1, 3, 5, 100]),
            "truncation_side": lambda: pick(["left", "right"]), "allowed_token_ids": lambda: pick([[785], [785, 3974, 151645], self.ids(4)]),
            "repetition_detection": lambda: {"max_pattern_size": 3, "min_count": 2}, "structured_outputs": lambda: self.structured(),
            "response_format": lambda: pick([{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}]),
        }

    def structured(self) -> dict:
        return self.rng.choice([{"choice": ["yes", "no"]}, {"regex": "[ab]{2,4}"}, {"json": SCHEMA}, {"json_object": True}, {"grammar": 'root ::= "a" | "b"'}])

    def stream(self) -> dict:
        pick = self.rng.choice
        return {"stream": lambda: pick([True, True, True, True, False]), "stream_interval": lambda: pick([1, 2, 5])}

    def common(self) -> dict:
        pick = self.rng.choice
        return self.sampling() | {
            "user": lambda: self.text(3), "request_id": lambda: f"body-{self.rng.randint(0, 999)}", "return_token_ids": lambda: pick([True, True, False]),
            "return_tokens_as_token_ids": lambda: pick([True, False]), "cache_salt": lambda: "salt", "priority": lambda: pick([0, 0, 0, 1]),
            "add_special_tokens": lambda: pick([True, False]), "session_id": lambda: "session-1", "vllm_xargs": lambda: {"script": self.script()},
            "thinking_token_budget": lambda: 5, "use_beam_search": lambda: pick([False, False, True]), "length_penalty": lambda: pick([1.0, 0.5])}

    def fields(self, path: str) -> dict:
        """The optional fields of an endpoint."""
        pick = self.rng.choice
        if path in (CHAT, BATCH):
            return self.common() | {
                "logprobs": lambda: pick([True, True, False]), "top_logprobs": lambda: pick([0, 1, 3]), "max_completion_tokens": lambda: pick([1, 5, 9]),
                "tool_choice": lambda: pick(["auto", "auto", "none", "required", {"type": "function", "function": {"name": "get_weather"}}]),
                "tools": lambda: [WEATHER_TOOL], "parallel_tool_calls": lambda: pick([True, False]), "include_reasoning": lambda: pick([True, False]),
                "reasoning_effort": lambda: pick(["none", "low", "high"]), "echo": lambda: pick([True, True, False]),
                "add_generation_prompt": lambda: pick([True, False]), "continue_final_message": lambda: pick([True, False]), "return_prompt_text": lambda: True,
                "chat_template_kwargs": lambda: pick([{"enable_thinking": False}, {"enable_thinking": True}, {"x": 1}, {}]),
                "documents": lambda: [{"title": "t", "text": "river"}], "metadata": lambda: {"a": "b"}, "store": lambda: False, "service_tier": lambda: "auto"}
        if path == COMPLETIONS:
            return self.common() | {"logprobs": lambda: pick([0, 1, 2, 5]), "echo": lambda: pick([True, True, False]), "suffix": lambda: self.text(2), "best_of": lambda: 1}
        if path == MESSAGES:
            return {"system": lambda: pick([self.text(), [{"type": "text", "text": self.text()}]]), "temperature": lambda: pick([0, 0, 0, 0.5]),
                    "top_p": lambda: pick([1, 0.5]), "top_k": lambda: pick([1, 5]), "stop_sequences": lambda: pick([["stop"], ["e", "a"], []]),
                    "metadata": lambda: {"user_id": "u1"}, "thinking": lambda: pick([{"type": "enabled", "budget_tokens": 4}, {"type": "disabled"}]),
                    "tools": lambda: [{"name": "get_weather", "description": "Weather", "input_schema": WEATHER_TOOL["function"]["parameters"]}],
                    "tool_choice": lambda: pick([{"type": "auto"}, {"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "get_weather"}]),
                    "chat_template_kwargs": lambda: pick([{"enable_thinking": False}, {}]), "vllm_xargs": lambda: {"script": self.script()}, "cache_salt": lambda: "salt"}
        if path == RESPONSES:
            return self.response_fields()
        return {}

    def response_fields(self) -> dict:
        pick, tool = self.rng.choice, WEATHER_TOOL["function"]
        shared = self.sampling()
        return {name: shared[name] for name in ("temperature", "top_p", "top_k", "stop", "presence_penalty", "frequency_penalty", "skip_special_tokens",
                                                "include_stop_str_in_output", "ignore_eos", "repetition_penalty", "stop_token_ids", "logit_bias")} | {
            "instructions": lambda: self.text(), "tools": lambda: [{"type": "function"} | tool], "tool_choice": lambda: pick(["auto", "auto", "none", "required"]),
            "parallel_tool_calls": lambda: pick([True, False]), "reasoning": lambda: pick([{"effort": "low"}, {"effort": "none"}, {}]),
            "text": lambda: pick([{"format": {"type": "text"}}, {"format": {"type": "json_object"}}, {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}]),
            "include": lambda: pick([[], ["message.output_text.logprobs"], ["reasoning.encrypted_content"]]), "metadata": lambda: {"a": "b"}, "store": lambda: pick([True, False]),
            "truncation": lambda: pick(["auto", "disabled"]), "user": lambda: "u1", "service_tier": lambda: "auto", "top_logprobs": lambda: pick([0, 2]),
            "include_reasoning": lambda: pick([True, False]), "vllm_xargs": lambda: {"script": self.script()}, "chat_template_kwargs": lambda: {"enable_thinking": False},
            "background": lambda: pick([False, True]), "max_tool_calls": lambda: 2, "previous_response_id": lambda: "resp_none", "prompt_cache_key": lambda: "k",
            "enable_response_messages": lambda: pick([True, False]), "request_id": lambda: f"resp_body{self.rng.randint(0, 999)}", "cache_salt": lambda: "salt"}

    # Bodies

    def body(self, path: str) -> dict:
        body = {"model": self.model} if self.chance(0.95) or path in (MESSAGES, COUNT) else {}
        make = {CHAT: self.chat, BATCH: self.batch, COMPLETIONS: self.completion, INVOCATIONS: self.invocation, MESSAGES: self.message, COUNT: self.message,
                RESPONSES: self.response, TOKENIZE: self.tokenize, DETOKENIZE: self.detokenize, GENERATE: self.generate}[path]
        make(body)
        if path in (CHAT, COMPLETIONS, BATCH, RESPONSES):
            self.agree(body, path)
        items = list(body.items())
        if self.chance(0.3):
            self.rng.shuffle(items)
        return dict(items)

    def agree(self, body: dict, path: str) -> None:
        """Keeps together what the engine can do together: a script and a grammar exclude each other."""
        guided = {"structured_outputs", "response_format", "text"} & set(body) or body.get("tool_choice") not in (None, "auto", "none")
        if guided:
            body.pop("vllm_xargs", None)
            text = json.dumps(body).replace("[[SCRIPT]]", "").replace("[[/SCRIPT]]", "")
            body.clear()
            body.update(json.loads(text))
        if body.get("tool_choice") and "tools" not in body and self.chance(0.8):
            body.pop("tool_choice")
        if body.get("top_logprobs") and path in (CHAT, BATCH) and self.chance(0.9):
            body["logprobs"] = True
        if body.get("logprob_token_ids") and self.chance(0.9):
            body["logprobs"] = True if path in (CHAT, BATCH) else 1
        if isinstance(body.get("n"), int) and body["n"] > 1 and self.chance(0.9):
            body["temperature"] = 1
        if body.get("continue_final_message") and self.chance(0.8):
            body["add_generation_prompt"] = False

    def streamed(self, body: dict, share: float = 0.5) -> None:
        if self.chance(share):
            body["stream"] = True
            if self.chance(0.5):
                body["stream_options"] = self.rng.choice([{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}, {"include_usage": False}, {}, None])

    def chat(self, body: dict) -> None:
        body |= {"messages": self.messages(), "max_tokens": self.rng.choice([1, 4, 6, 8, 12, 16]), "temperature": 0}
        self.streamed(body)
        self.optional(body, self.fields(CHAT) | {"stream_interval": self.stream()["stream_interval"]}, self.rng.choice([0.02, 0.05, 0.1]))
        if self.chance(0.2):
            body |= {"tools": [WEATHER_TOOL], "vllm_xargs": {"script": self.script()}, "max_tokens": self.rng.choice([20, 60])}

    def batch(self, body: dict) -> None:
        self.chat(body)
        body["messages"] = [body["messages"], self.messages()]
        body.pop("stream", None), body.pop("stream_options", None)

    def completion(self, body: dict) -> None:
        prompt = self.rng.choice([lambda: self.maybe_scripted(self.text()), lambda: self.maybe_scripted(self.text()), self.ids, self.long,
                                  lambda: [self.maybe_scripted(self.text()) for _ in range(self.rng.randint(1, 3))], lambda: [self.ids(), self.ids()]])()
        body |= {"prompt": prompt, "max_tokens": self.rng.choice([1, 4, 6, 8, 12, 16]), "temperature": 0}
        self.streamed(body)
        self.optional(body, self.fields(COMPLETIONS) | {"stream_interval": self.stream()["stream_interval"]}, self.rng.choice([0.02, 0.05, 0.1]))
        if body.get("echo") and self.chance(0.2):
            body["max_tokens"] = 0

    def invocation(self, body: dict) -> None:
        self.rng.choice([self.chat, self.completion])(body)

    def message(self, body: dict) -> None:
        listed = []
        for message in self.messages():
            if message["role"] in ("user", "assistant"):
                content = message["content"] or "ok"
                listed.append({"role": message["role"], "content": content})
                if calls := message.get("tool_calls"):
                    listed[-1]["content"] = [{"type": "tool_use", "id": calls[0]["id"], "name": "get_weather", "input": {"city": "Paris"}}]
            elif message["role"] == "tool":
                listed.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}]})
        body |= {"messages": listed, "max_tokens": self.rng.choice([1, 4, 8, 12, 30])}
        if self.chance(0.95):
            body["temperature"] = 0
        if self.chance(0.5):
            body["stream"] = True
        self.optional(body, self.fields(MESSAGES), self.rng.choice([0.03, 0.1, 0.2]))
        if "tool_choice" in body and "tools" not in body and self.chance(0.8):
            body.pop("tool_choice")
        if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            body.pop("vllm_xargs", None)
            body["messages"] = [{"role": "user", "content": self.text().replace("[[", "")}]

    def response(self, body: dict) -> None:
        if self.chance(0.6):
            entered: object = self.maybe_scripted(self.text())
        else:
            entered = []
            for message in self.messages():
                if message["role"] == "tool":
                    entered.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]})
                elif calls := message.get("tool_calls"):
                    entered.append({"type": "function_call", "call_id": calls[0]["id"], "name": "get_weather", "arguments": calls[0]["function"]["arguments"]})
                else:
                    text = message["content"] if isinstance(message["content"], str) else [{"type": "input_text", "text": part["text"]} for part in message["content"]]
                    entered.append({"role": message["role"], "content": text})
        body |= {"input": entered, "max_output_tokens": self.rng.choice([1, 4, 8, 12, 30])}
        if self.chance(0.95):
            body["temperature"] = 0
        if self.chance(0.5):
            body["stream"] = True
        self.optional(body, self.fields(RESPONSES), self.rng.choice([0.02, 0.05, 0.1]))

    def tokenize(self, body: dict) -> None:
        pick = self.rng.choice
        if self.chance(0.5):
            body["prompt"] = self.text()
        else:
            body["messages"] = self.messages()
            self.optional(body, {"add_generation_prompt": lambda: pick([True, False]), "continue_final_message": lambda: True, "tools": lambda: [WEATHER_TOOL],
                                 "chat_template_kwargs": lambda: {"enable_thinking": False}}, 0.2)
        self.optional(body, {"add_special_tokens": lambda: pick([True, False]), "return_token_strs": lambda: pick([True, False])}, 0.3)

    def detokenize(self, body: dict) -> None:
        body["tokens"] = self.ids()

    def generate(self, body: dict) -> None:
        pick = self.rng.choice
        parameters = {"max_tokens": pick([1, 4, 8, 12]), "temperature": 0}
        drawn = self.sampling()
        leave = ("response_format", "truncate_prompt_tokens", "truncation_side", "structured_outputs", "logprob_token_ids", "prompt_logprobs")
        self.optional(parameters, {name: drawn[name] for name in drawn if name not in leave} | {
            "logprobs": lambda: pick([0, 1, 3]), "detokenize": lambda: pick([True, True, False]), "extra_args": lambda: {"script": self.script()}}, pick([0.02, 0.1]))
        body |= {"token_ids": self.ids(), "sampling_params": parameters}
        self.streamed(body, 0.4)
        self.optional(body, {"output_mode": lambda: pick(["tokens", "text"]), "return_token_ids": lambda: True, "request_id": lambda: "body-1", "cache_salt": lambda: "s"}, 0.2)
