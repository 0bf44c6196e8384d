"""The agent of examples/mcp, replayed without a model and without servers.

    example.py VLLM-VCR [--stdio]

Needs the Python packages `mcp` and `openai`. Servers are played over HTTP by the process that plays the model; with --stdio by
`mcp-play`. Checks what the guide promises: unchanged, with a changed argument, with a skipped call, and twice at once.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TESTS = pathlib.Path(__file__).parent.parent
sys.path.append(str(TESTS / "sdk"))

from forks import forking

EXAMPLE = TESTS.parent / "examples" / "mcp"
PYTHON = forking("import mcp, openai; openai.AsyncOpenAI(api_key='-').chat")


def changed_call(text):
    """The model asks for another zone than it did."""
    said = '        name: convert_time\n        arguments: {source_timezone: UTC, time: "14:30", target_timezone: Asia/Tokyo}'
    assert text.count(said) == 1
    return text.replace(said, said.replace("Asia/Tokyo", "Europe/Berlin"))


def without_call(text):
    """The model ends where it called the second tool."""
    said = "    status: 200\n    message: {role: assistant, content: Done.}\n    finish_reason: stop"
    text, count = re.subn(r"(?s)(tool_call_id: call_1\n.*?\n  answer:\n)(.*?)(?=\n- id: )", lambda it: it[1] + said, text, count=1)
    assert count == 1
    return text


def replay(program, over_stdio, change=lambda text: text):
    """Runs the agent on a changed cassette; gives its exit code, its messages and the reports."""
    folder = pathlib.Path(tempfile.mkdtemp())
    tape = folder / "agent.yaml"
    shutil.copytree(EXAMPLE / "agent.vcr", folder / "agent.vcr")
    tape.write_text(change((EXAMPLE / "agent.yaml").read_text()))
    play = [program, "play", "--cassette", str(tape), "--port", "0", "--strict", "--report", str(folder / "report.json")]
    environment = {**os.environ, "OPENAI_API_KEY": "none"}
    names = ["report"]
    if over_stdio:
        play += ["--fail-on", "miss,unconsumed"]
        for name in ["time", "files"]:
            server = [program, "mcp-play", "--cassette", str(tape), "--server", name, "--strict", "--report", str(folder / f"{name}.json")]
            environment[f"MCP_{name.upper()}"] = " ".join(server)
            names.append(name)
    agent = [*play, "--", PYTHON, "agent.py"]
    ran = subprocess.run(agent, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=300)
    messages = json.loads(ran.stdout) if ran.stdout.strip() else None
    reports = [json.loads((folder / f"{name}.json").read_text()) for name in names if (folder / f"{name}.json").exists()]
    return ran.returncode, messages, json.dumps(reports), ran.stderr


def main(program, over_stdio=False):
    recorded = json.loads((EXAMPLE / "transcript.json").read_text())

    code, messages, reports, notes = replay(program, over_stdio)
    assert code == 0 and messages == recorded, (code, messages, notes)
    print("unchanged: exit 0, the same transcript")

    code, messages, reports, notes = replay(program, over_stdio, changed_call)
    answer = messages[4]["content"]
    for part in ["convert_time", "agent.yaml#", "target_timezone", "Europe/Berlin", "Asia/Tokyo"]:
        assert part in answer, (part, answer)
    assert code != 0, notes
    print(f"a changed argument: exit {code}, the model reads\n  " + answer.replace("\n", "\n  "))

    code, messages, reports, notes = replay(program, over_stdio, without_call)
    assert len(messages) == 4 and "convert_time" in reports + notes and "unconsumed" in reports, (messages, notes, reports)
    if not over_stdio:
        assert code != 0, notes
    print(f"a skipped call: exit {code}, reported as not consumed")

    twice = two_processes(program) if over_stdio else two_sessions(program)
    for code, messages, notes in twice:
        assert code == 0 and messages == recorded, (code, messages, notes)
    print("two at once: exit 0, the same transcript twice")


def two_processes(program):
    """Two agents with a model and servers each."""
    with ThreadPoolExecutor(2) as two:
        return [(code, messages, notes) for code, messages, _, notes in two.map(lambda _: replay(program, True), range(2))]


def two_sessions(program):
    """Two agents with one model and one set of servers, in a session each."""
    tape = EXAMPLE / "agent.yaml"
    play = [program, "play", "--cassette", str(tape), "--port", "0", "--strict"]
    playing = subprocess.Popen(play, stderr=subprocess.PIPE, text=True)
    root = next(line for line in playing.stderr if " on http://" in line).split(" on ")[1].split()[0]

    def agent(session):
        url = f"{root}/vcr/s/{session}"
        environment = {**os.environ, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1", "VLLM_VCR_URL": url}
        ran = subprocess.run([PYTHON, "agent.py"], cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=300)
        return ran.returncode, json.loads(ran.stdout), ran.stderr

    with ThreadPoolExecutor(2) as two:
        both = list(two.map(agent, ["one", "other"]))
    playing.terminate()
    notes = playing.stderr.read()
    assert playing.wait() == 0, notes
    return both


if __name__ == "__main__":
    main(str(pathlib.Path(sys.argv[1]).resolve()), "--stdio" in sys.argv)
