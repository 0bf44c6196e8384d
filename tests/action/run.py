"""Runs the steps of the actions in packages/action with files in place of the runner's: a server that plays, misses and records, and a gate
that passes and fails. Usage: run.py BINARY, with Python that has pyyaml and check-jsonschema."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
ACTIONS = ROOT / "packages/action"
BINARY = pathlib.Path(sys.argv[1]).resolve()
CASSETTE = """vcr: 1
records:
- at: llm:m
  request: POST /v1/chat/completions
  body: {model: m, messages: [{role: user, content: weather}]}
  answer:
    status: 200
    message: {role: assistant, content: rain}
    finish_reason: stop
"""


class Job:
    """What a runner keeps between the steps of a job."""

    def __init__(self, folder):
        self.folder, self.variables = folder, {}
        for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY"):
            (folder / name).write_text("")

    def step(self, action, **inputs):
        """Runs the action's first step; its exit code and what it printed."""
        described = yaml.safe_load((ACTIONS / action / "action.yml").read_text())
        step = described["runs"]["steps"][0]
        values = {name: str(it.get("default", "")) for name, it in described["inputs"].items()} | inputs
        env = {name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: values[found[1]], text) for name, text in step["env"].items()}
        files = {name: str(self.folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_STEP_SUMMARY")}
        env = {**os.environ, **self.variables, **env, **files, "RUNNER_TEMP": str(self.folder), "GITHUB_ACTION_PATH": str(ACTIONS / action)}
        ran = subprocess.run(["bash", "-euo", "pipefail", "-c", step["run"]], env=env, capture_output=True, text=True, cwd=self.folder)
        self.variables |= pairs(self.read("GITHUB_ENV"))
        return ran.returncode, ran.stdout + ran.stderr

    def read(self, name):
        return (self.folder / name).read_text()

    @property
    def outputs(self):
        return pairs(self.read("GITHUB_OUTPUT"))


def pairs(text):
    return dict(line.split("=", 1) for line in text.splitlines())


def ask(url, content):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def expect(holds, *seen):
    if not holds:
        sys.exit(f"not as expected: {seen}")


def job(name):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{name}."))
    (folder / "agent.yaml").write_text(CASSETTE)
    return Job(folder)


def check_files():
    for path in ACTIONS.glob("*/action.yml"):
        schema = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", path]
        ran = subprocess.run(schema, capture_output=True, text=True)
        expect(ran.returncode == 0, ran.stdout)
        text = path.read_text()
        used, declared = set(re.findall(r"inputs\.(\w+)", text)), set(yaml.safe_load(text)["inputs"])
        expect(used == declared, path, used ^ declared)
        loose = [line for line in text.splitlines() if "uses:" in line and not re.search(r"@[0-9a-f]{40} # v", line)]
        expect(not loose, path, loose)


def plays():
    run = job("plays")
    code, said = run.step("start", binary=str(BINARY), cassette="agent.yaml", args="--strict --tag 'two words'")
    expect(code == 1 and "::error" in said and "--tag" in said, code, said)
    code, said = run.step("start", binary=str(BINARY), cassette="agent.yaml", args="--tag 'two")
    expect(code == 1 and "quote without an end" in said, code, said)
    code, said = run.step("start", binary=str(BINARY), cassette="agent.yaml", args="--strict --ignore '$.metadata.a b'")
    expect(code == 0, said)
    expect(ask(run.outputs["url"], "weather") == 200, said)
    expect(run.variables["OPENAI_BASE_URL"] == run.outputs["url"] + "/v1", run.variables)
    code, said = run.step("gate")
    expect(code == 0 and run.outputs["passed"] == "true", said)
    expect("| default | 1 | 1 of 1 | none |" in run.read("GITHUB_STEP_SUMMARY"), run.read("GITHUB_STEP_SUMMARY"))
    expect(sorted(os.listdir(run.outputs["folder"])) == ["log", "report.json"], run.outputs)


def misses():
    run = job("misses")
    code, said = run.step("start", binary=str(BINARY), cassette="agent.yaml", args="--strict")
    expect(code == 0 and ask(run.outputs["url"], "news") == 422, said)
    code, said = run.step("gate")
    expect(code == 1 and "::error title=Cassettes::failed: miss%0A" in said and said.count("\n") == 1, said)
    expect(run.outputs["passed"] == "false" and "1 no_match" in run.read("GITHUB_STEP_SUMMARY"), run.read("GITHUB_STEP_SUMMARY"))


def records():
    engine = job("engine")
    expect(engine.step("start", binary=str(BINARY), cassette="agent.yaml")[0] == 0)
    run = job("records")
    code, said = run.step("start", binary=str(BINARY), cassette="new.yaml", mode="once", env="false")
    expect(code == 1 and "needs an upstream" in said, said)
    code, said = run.step("start", binary=str(BINARY), cassette="new.yaml", mode="once", upstream=engine.outputs["url"], env="false")
    expect(code == 0 and ask(run.outputs["url"], "weather") == 200 and "OPENAI_BASE_URL" not in run.variables, said)
    code, said = run.step("gate")
    expect(code == 0 and "content: rain" in (run.folder / "new.yaml").read_text(), said)
    expect(engine.step("gate")[0] == 0)


def does_not_start():
    run = job("broken")
    code, said = run.step("start", binary=str(BINARY), cassette="nowhere.yaml")
    expect(code == 1 and "::error title=vllm-vcr::error: nowhere.yaml: No such file or directory (os error 2)" in said, said)
    code, said = run.step("gate")
    expect(code == 1 and "nothing to look at" in said, said)


def compares():
    trace = str(ROOT / "traces/builtin.jsonl.gz")
    run = job("compares")
    (run.folder / "gate.toml").write_text('[ttft_p50]\nmax = "1ms"\n[requests]\nmin = 1\n')
    code, said = run.step("gate", binary=str(BINARY), baseline=trace, candidate=trace, gate="gate.toml")
    expect(code == 1 and re.search(r"^::error title=ttft_p50::.* is above 1.00 ms$", said, re.M) and "title=requests" not in said, said)
    expect("| ttft_p50 |" in run.read("GITHUB_STEP_SUMMARY"), run.read("GITHUB_STEP_SUMMARY"))
    expect(sorted(os.listdir(run.outputs["folder"])) == ["comparison.json", "comparison.md", "junit.xml"], run.outputs)
    run = job("equal")
    expect(run.step("gate", binary=str(BINARY), baseline=trace, candidate=trace)[0] == 0)
    code, said = job("one").step("gate", binary=str(BINARY), baseline=trace)
    expect(code == 1 and "needs both" in said, said)
    code, said = job("absent").step("gate", binary=str(BINARY), baseline=trace, candidate="nowhere.jsonl")
    expect(code == 1 and "nowhere.jsonl" in said, said)


def drifts():
    engine = job("engine")
    expect(engine.step("start", binary=str(BINARY), cassette="agent.yaml", args="--on-exhausted last")[0] == 0)
    run = job("drifts")
    code, said = run.step("gate", binary=str(BINARY), cassettes="agent.yaml\n", live=engine.outputs["url"])
    expect(code == 0 and "no drift: 0 of 1" in run.read("GITHUB_STEP_SUMMARY"), said, run.read("GITHUB_STEP_SUMMARY"))
    run = job("drifted")
    (run.folder / "agent.yaml").write_text(CASSETTE.replace("finish_reason: stop", "finish_reason: length"))
    code, said = run.step("gate", binary=str(BINARY), cassettes="agent.yaml", live=engine.outputs["url"])
    expect(code == 1 and "::error title=Drift of agent.yaml#0::" in said and "finish_reason is 'stop'" in said, said)
    expect(sorted(os.listdir(run.outputs["folder"])) == ["drift.json", "drift.md"], run.outputs)
    code, said = job("half").step("gate", binary=str(BINARY), cassettes="agent.yaml")
    expect(code == 1 and "needs both" in said, said)
    expect(engine.step("gate")[0] == 0)


for case in (check_files, plays, misses, records, does_not_start, compares, drifts):
    case()
    print(f"ok: {case.__name__}")
