"""Answers drawn at random for record-parsers: reasoning and calls that are good, broken, cut or repeated, in tokens that break anywhere."""
import json, random

WORDS = ["river", " stone", " the", "Zürich", " 🦀", "日本語", "👩‍👩‍👧", "مرحبا", "\n", "\n\n", " ", "  ", ":", " a: b", "<b>", "&", "\\", '"', "'", "}", "{", "]", "[", ",", ";", "; ", "x", "12", "3.50", "-1e5", "null", "true", "`", "```", "\t", "é", "½", "<|im_start|>", "<", ">", "</", "function", "Here", "json", "\u2028", "\r\n"]
VALUES = ['"Paris"', '"Zürich 🦀"', '"a \\"q\\" b"', '"\\u00e9\\ud83e\\udd80"', '""', "5", "-7", "2.50", "1e400", "1.5e3", "12345678901234567890123", "true", "null", "NaN", "[]", "{}", '[1, "two", {"a": null}]', '{"d": "7", "z": [1, null]}', '{"x": {"y": {"z": []}}}', '"}"', '"]}"', '"line\\nline"', '"<tool_call>"', '"\\\\"', '"tab\\t"', "oops", "'single'", '"a" "b"', "True", '"<think>"', '"say `x` "']
PLAIN = ["Paris", "Zürich 🦀", "5", "-7", "2.50", "1e400", "true", "False", "null", "None", "[1, 2]", "['a']", '{"d": "7"}', "line one\nline two", "", " ", "\n", "a < b > c", "<b>bold</b>", "1_0", '"quoted"', "0", "1", "oops", "\n\nx\n\n", "  pad  ", "NaN", '["1", 2]', "C", "{bad"]
KEYS = ["city", "n", "x", "ok", "o", "l", "u", "e", "free", "text", "a", "", "key one", "é", "name", "arguments", "parameters"]
NAMES = ["get_weather", "now", "unknown", "f", "get weather", "", "n-1.x"]


class Drawing:
    def __init__(self, rng):
        self.rng = rng

    def chance(self, share):
        return self.rng.random() < share

    def text(self, most=6):
        return "".join(self.rng.choices(WORDS, k=self.rng.randint(0, most)))

    def object(self, spaced=None):
        pick = self.rng.choice
        comma, colon = pick([(", ", ": "), (", ", ": "), (",", ":"), (",\n  ", ": "), (" , ", " : ")])
        pairs = [f'"{pick(KEYS)}"{colon}{pick(VALUES)}' for _ in range(self.rng.choice([0, 1, 1, 2, 3]))]
        around = pick(["{%s}", "{%s}", "{%s}", "{ %s }", "{\n  %s\n}"])
        return around % comma.join(pairs)

    def named(self, arguments="arguments"):
        pick = self.rng.choice
        name = f'"name": "{pick(NAMES[:5])}"'
        key = arguments if self.chance(0.85) else pick(["arguments", "parameters", "args"])
        value = self.object() if self.chance(0.9) else pick(VALUES)
        parts = [name, f'"{key}": {value}']
        if self.chance(0.15):
            parts.reverse()
        if self.chance(0.08):
            parts.insert(self.rng.randint(0, len(parts)), '"id": "x1"')
        if self.chance(0.05):
            parts.pop()
        text = "{" + ", ".join(parts) + "}"
        return text if self.chance(0.8) else text.replace(": ", ":").replace(", ", ",") if self.chance(0.5) else text.replace("{", "{\n  ", 1)

    def xml(self, wrap):
        pick, line = self.rng.choice, self.rng.choice(["\n", "\n", "\n", ""])
        parts = [f"<{wrap}>", line, "<function=", pick(NAMES), ">", line]
        for _ in range(self.rng.choice([0, 1, 1, 2, 3])):
            parts += ["<parameter=", pick(KEYS), ">", line, pick(PLAIN), line, "</parameter>", line]
        return parts + ["</function>", line, f"</{wrap}>"]

    def hermes(self):
        line = self.rng.choice(["\n", "\n", "", " "])
        return ["<tool_call>", line, self.named(), line, "</tool_call>"]

    def reasoning(self, start, end):
        parts = [start if self.chance(0.6) else "", self.rng.choice(["", "\n", "\n", " "]), self.text(), self.rng.choice(["", "\n", " \n"])]
        return parts + ([end, self.rng.choice(["", "\n\n", "\n", " "])] if self.chance(0.85) else [])

    def calls(self, family):
        several = self.rng.choice([0, 1, 1, 1, 2, 2, 3])
        if family in ("forced", "deepseek-r1", "granite", "hermes"):
            calls = [self.hermes() for _ in range(several)]
            joint = ["", "\n", "\n", " ", "\n\n"]
        elif family in ("qwen3-coder", "qwen3-kin"):
            calls, joint = [self.xml("tool_call") for _ in range(several)], ["", "\n", "\n", " "]
        elif family == "seed-oss":
            calls, joint = [self.xml("seed:tool_call") for _ in range(several)], ["", "\n", "\n"]
        elif family == "llama3-json":
            calls, joint = [[self.named("parameters")] for _ in range(several)], ["; ", "; ", "; ", ";", "\n", ", "]
            if calls and self.chance(0.3):
                calls[0].insert(0, "<|python_tag|>")
        elif family == "deepseek-v3":
            calls = [["<｜tool▁call▁begin｜>", self.rng.choice(["function", "function", "function", "other"]), "<｜tool▁sep｜>", self.rng.choice(NAMES), "\n```json\n", self.object(), "\n```", "<｜tool▁call▁end｜>"] for _ in range(several)]
            joint = ["", "\n", "\n"]
        elif family == "deepseek-v31":
            calls = [["<｜tool▁call▁begin｜>", self.rng.choice(NAMES), "<｜tool▁sep｜>", self.object(), "<｜tool▁call▁end｜>"] for _ in range(several)]
            joint = ["", "\n"]
        else:
            calls = [["[TOOL_CALLS]", self.rng.choice(NAMES), self.rng.choice(["[ARGS]", "[ARGS]", "", " "]), self.object()] for _ in range(several)]
            joint = ["", "", "\n"]
        parts = []
        for call in calls:
            parts += ([self.rng.choice(joint)] if parts else []) + call
        if family in ("deepseek-v3", "deepseek-v31") and (calls or self.chance(0.3)):
            parts = ["<｜tool▁calls▁begin｜>"] + parts + ["<｜tool▁calls▁end｜>"]
        return parts

    def required(self):
        return ["[", ", ".join(self.named("parameters") for _ in range(self.rng.choice([0, 1, 1, 2]))), "]"] if self.chance(0.7) else [self.object()]

    def script(self, family, choice):
        pick = self.rng.choice
        marks = {"mistral": ("[THINK]", "[/THINK]"), "mistral-plain": ("[THINK]", "[/THINK]"), "seed-oss": ("<seed:think>", "</seed:think>"),
                 "granite": (pick(["Here is my thought process:", "Here's my thought process:"]), pick(["Here is my response:", "Here's my response:"]))}
        marks = marks.get(family, ("<think>", "</think>"))
        if self.chance(0.1):
            marks = ("<think>", "</think>")
        parts = self.reasoning(*marks) if self.chance(0.6) else []
        if choice not in ("auto", "none") and self.chance(0.5):
            parts += self.required()
        else:
            parts += [self.text()] if self.chance(0.35) else []
            parts += self.calls(family)
            parts += [self.text()] if self.chance(0.3) else []
        tags = [part for part in parts if part[:1] in "<[" and part] + list(marks)
        if self.chance(0.55):
            for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
                self.spoil(parts, tags)
        return parts

    def spoil(self, parts, tags):
        at, pick = self.rng.randint(0, len(parts)), self.rng.choice
        kind = self.rng.random()
        if kind < 0.2 and parts:
            del parts[at % len(parts)]
        elif kind < 0.35 and parts:
            parts.insert(at, pick(parts))
        elif kind < 0.5:
            parts.insert(at, pick(tags))
        elif kind < 0.6:
            tag = pick(tags)
            parts.insert(at, tag[: self.rng.randint(0, len(tag))])
        elif kind < 0.7:
            parts.insert(at, self.text(3))
        elif kind < 0.85:
            del parts[at:]
            if parts:
                parts[-1] = parts[-1][: self.rng.randint(0, len(parts[-1]))]
        elif parts:
            at %= len(parts)
            part = parts[at]
            cut = self.rng.randint(0, len(part))
            parts[at] = part[:cut] + pick(["", " ", self.text(1)]) + part[cut + self.rng.randint(0, 1):]

    def ids(self, parts, encode, byte):
        """Tokens of the text: the tokenizer's own, or broken at some places, into letters, or into bytes."""
        text = "".join(parts)
        kind = self.rng.random()
        if kind < 0.5:
            return encode(text)
        if kind < 0.65:
            return [id for part in parts for id in encode(part)]
        ids = []
        while text:
            length = self.rng.choice([1, 2, 3, 5, 8, 13, 40])
            piece, text = text[:length], text[length:]
            if kind < 0.8 or self.chance(0.5):
                ids += encode(piece)
            else:
                ids += [byte(one) for one in piece.encode()]
        return ids


def alphabet() -> dict[int, str]:
    """The letter by which a vocabulary of bytes spells each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}
