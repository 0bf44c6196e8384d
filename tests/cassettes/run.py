"""Records an agent on the OpenAI SDK once, from a scripted engine, and replays it offline; so it does what record.py recorded from a
real vLLM.

Usage: run.py BINARY. Prints one line per failure and `N passed, N failed`; exits 1 when anything failed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "sdk"))

from forks import forking
from scripted_engine import scripted_engine

PYTHON = forking("import anthropic, openai; anthropic.Anthropic(api_key='-').messages, openai.OpenAI(api_key='-').chat")
AGENT = [PYTHON, str(HERE / "agent.py")]

MISS = """
import anthropic, openai, sys
for sdk, error, ask in [
    (openai.OpenAI(max_retries=3), openai.UnprocessableEntityError,
     lambda sdk: sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "nobody asked this"}])),
    (anthropic.Anthropic(max_retries=3), anthropic.UnprocessableEntityError,
     lambda sdk: sdk.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "nor this"}])),
]:
    try:
        ask(sdk)
    except error as miss:
        assert "No recorded interaction" in str(miss) or "Nothing was recorded" in str(miss), miss
        assert len(str(miss)) < 1600 and "/vcr/misses/" in str(miss), miss
    else:
        sys.exit("no miss")
"""

FAMILIES = """
import anthropic, json, openai
sdk, other = openai.OpenAI(max_retries=0), anthropic.Anthropic(max_retries=0)
vector = sdk.embeddings.create(model="m", input="text", encoding_format="float").data[0].embedding
message = [{"role": "user", "content": "Hi"}]
whole = other.messages.create(model="m", max_tokens=9, messages=message).content[0].text
with other.messages.stream(model="m", max_tokens=9, messages=message) as stream:
    pieces = list(stream.text_stream)
print(json.dumps([vector, whole, "".join(pieces)]))
"""


FLAKY = """
import httpx, json, openai
seen = []
client = httpx.Client(event_hooks={"response": [lambda response: seen.append(response.status_code)]})
sdk = openai.OpenAI(max_retries=2, http_client=client)
answer = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "flaky"}])
print(json.dumps([seen, answer.choices[0].message.content]))
"""


EARLY = """
import json, openai
sdk = openai.OpenAI(max_retries=0)
messages = [{"role": "user", "content": "early"}]
texts = []
for turn in range(3):
    text = ""
    stream = sdk.chat.completions.create(model="m", messages=messages, stream=True)
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].finish_reason:
            break
    stream.close()
    texts.append(text)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"more {turn}"}]
print(json.dumps(texts))
"""


def run(command, **variables):
    environment = {**os.environ, "OPENAI_API_KEY": "sk-test", **variables}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, env=environment)
    return done.returncode, done.stdout, done.stderr


class Case:
    """One scripted engine and one folder for all cases."""

    def __init__(self, binary, folder, engine):
        self.binary, self.folder, self.engine = binary, Path(folder), engine

    def tap(self, name, *flags, command=AGENT, **variables):
        fixed = ["tap", "--upstream", self.engine, "--listen", "127.0.0.1:0"]
        return run([self.binary, *fixed, "--cassette", self.folder / name, *flags, "--", *command], **variables)

    def play(self, name, *flags, command=AGENT, **variables):
        fixed = ["play", "--instant", "--cassette", self.folder / name]
        return run([self.binary, *fixed, *flags, "--", *command], **variables)

    def an_agent_replays_offline(self):
        for stream in ("0", "1"):
            code, live, said = self.tap(f"agent{stream}.yaml", STREAM=stream)
            assert code == 0 and live.count("\n") == 2, said
            for asked in ("0", "1"):
                code, played, said = self.play(f"agent{stream}.yaml", "--strict", STREAM=asked)
                assert (code, played) == (0, live), (played, live, said)

    def recorded_again_no_line_changes(self):
        self.tap("again.yaml")
        assert (self.folder / "again.yaml").read_text() == (self.folder / "agent0.yaml").read_text()

    def an_edited_prompt_is_named(self):
        code, _, said = self.play("agent0.yaml", "--strict", PROMPT="What is the weather in Paris?")
        assert code == 1 and "messages[1].content" in said and "Closest recorded request: #0" in said, said

    def a_turn_that_is_left_out_is_unconsumed(self):
        code, _, said = self.play("agent0.yaml", "--strict", TURNS="1")
        assert code == 1 and "unconsumed: agent0.yaml#1" in said, said

    def two_workers_in_two_sessions(self):
        both = f"SESSION=a {' '.join(AGENT)} > {self.folder}/a & SESSION=b {' '.join(AGENT)} > {self.folder}/b; wait"
        code, _, said = self.play("agent0.yaml", "--strict", command=["sh", "-c", both])
        assert code == 0, said
        assert (self.folder / "a").read_text() == (self.folder / "b").read_text() != ""

    def real(self, name, *flags, command=AGENT, **variables):
        """The agent on what record.py recorded from a real vLLM."""
        fixed = ["play", "--instant", "--strict", "--cassette", HERE / "real" / f"{name}.yaml"]
        return run([self.binary, *fixed, *flags, "--", *command], MODEL="tiny-qwen3", SCRIPTED="1", **variables)

    def a_real_engine_replays_offline(self):
        for name in ("whole", "streamed"):
            transcript = (HERE / "real" / f"{name}.transcript").read_text()
            assert transcript.count("\n") == 3 and "Paris" in transcript, transcript
            for stream in ("0", "1"):
                code, played, said = self.real(name, STREAM=stream)
                assert (code, played) == (0, transcript), (played, transcript, said)

    def a_real_engines_miss_names_the_edited_prompt(self):
        code, _, said = self.real("whole", PROMPT="What is the weather in Rome?")
        assert code == 1 and "messages[1].content" in said and "Closest recorded request: #0" in said, said
        assert "failed: miss" in said and "Rome" in said, said

    def a_real_engines_turn_that_is_left_out_is_unconsumed(self):
        code, _, said = self.real("whole", TURNS="2")
        assert code == 1 and "unconsumed: whole.yaml#2" in said and "#1 (" not in said, said

    def two_workers_on_a_real_engines_cassette(self):
        one = " ".join(AGENT)
        both = f"SESSION=a {one} > {self.folder}/ra & SESSION=b STREAM=1 {one} > {self.folder}/rb; wait"
        code, _, said = self.real("streamed", command=["sh", "-c", both])
        assert code == 0, said
        transcript = (HERE / "real" / "streamed.transcript").read_text()
        assert (self.folder / "ra").read_text() == (self.folder / "rb").read_text() == transcript

    def nothing_of_the_recording_machine_is_kept(self):
        for path in (HERE / "real").rglob("*"):
            if path.is_file():
                text = path.read_text()
                assert not any(part in text for part in ("/root", "/home", "/work", "127.0.0.1", "localhost")), path

    def a_miss_is_one_request(self):
        report = self.folder / "report.json"
        code, _, said = self.play("agent0.yaml", "--report", report, command=[PYTHON, "-c", MISS], ANTHROPIC_API_KEY="k")
        session = json.loads(report.read_text())["sessions"]["default"]
        assert code == 0 and session["requests"] == 2 and sum(session["misses"].values()) == 2, (said, session)

    def retries_of_the_sdk_replay_in_order(self):
        command = [PYTHON, "-c", FLAKY]
        code, live, said = self.tap("flaky.yaml", "--record-errors", "all", command=command)
        assert code == 0 and json.loads(live)[0] == [500, 500, 200], (live, said)
        for flags in ([], ["--retries", "consume"]):
            code, played, said = self.play("flaky.yaml", "--strict", *flags, command=command)
            assert (code, played) == (0, live), (flags, played, live, said)

    def streams_that_are_closed_early_replay(self):
        command = [PYTHON, "-c", EARLY]
        code, live, said = self.tap("early.yaml", command=command)
        assert code == 0 and "recorded 3 interactions" in said and "partial" not in said, said
        assert "aborted" not in (self.folder / "early.yaml").read_text()
        code, played, said = self.play("early.yaml", "--strict", command=command)
        assert (code, played) == (0, live), (played, live, said)

    def random_histories_replay(self):
        command = [PYTHON, HERE / "history.py"]
        for seed in range(6):
            for within in ("30s", "0"):
                name, seeded = f"history{seed}-{within}.yaml", {"command": command, "SEED": str(seed)}
                code, live, said = self.tap(name, "--record-errors", "all", "--complete-within", within, **seeded)
                assert code == 0 and live.count("\n") >= 12, said
                code, played, said = self.play(name, "--strict", **seeded)
                different = [pair for pair in zip(live.splitlines(), played.splitlines()) if pair[0] != pair[1]]
                assert (code, different) == (0, []) and played == live, (name, different[:2], said)

    def other_families_replay(self):
        command = [PYTHON, "-c", FAMILIES]
        code, live, said = self.tap("families.yaml", command=command, ANTHROPIC_API_KEY="k")
        assert code == 0, said
        code, played, said = self.play("families.yaml", "--strict", command=command, ANTHROPIC_API_KEY="k")
        assert (code, played) == (0, live), (played, live, said)


CASES = [
    Case.an_agent_replays_offline,
    Case.recorded_again_no_line_changes,
    Case.an_edited_prompt_is_named,
    Case.a_turn_that_is_left_out_is_unconsumed,
    Case.two_workers_in_two_sessions,
    Case.a_real_engine_replays_offline,
    Case.a_real_engines_miss_names_the_edited_prompt,
    Case.a_real_engines_turn_that_is_left_out_is_unconsumed,
    Case.two_workers_on_a_real_engines_cassette,
    Case.nothing_of_the_recording_machine_is_kept,
    Case.a_miss_is_one_request,
    Case.streams_that_are_closed_early_replay,
    Case.random_histories_replay,
    Case.retries_of_the_sdk_replay_in_order,
    Case.other_families_replay,
]


def main(binary):
    failed = 0
    with scripted_engine(HERE / "engine.py") as engine, tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            try:
                case(Case(binary, folder, engine))
            except Exception as error:
                failed += 1
                print(f"FAILED {case.__name__}: {error}", flush=True)
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
