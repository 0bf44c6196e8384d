"""Runs the examples of test frameworks as their guide has it (docs/src/guides/test-frameworks.md): a cassette per test is recorded
from a scripted engine, then played without it: all tests, some of them, with a cassette deleted, a prompt edited, a turn left out.

Usage: run.py BINARY [--show] [pytest] [vitest] [go]. Without names those that are installed. --show prints what a developer sees.
Prints one line per failure and `N passed, N failed`; exits 1 when anything failed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "sdk"))

from forks import forking
from scripted_engine import scripted_engine

PYTHON = forking("import openai, pytest, xdist; openai.OpenAI(api_key='-').chat")
NODE_MODULES = ROOT / "target" / "vitest" / "node_modules"
GO = shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))

# A test that goes on after an error, as agents do.
SWALLOWS = """
import os, urllib.request
from test_agent import ask
def test_swallows(client):
    try:
        {call}
    except Exception as error:
        print(error)
"""


class Framework:
    """One example, copied into a folder of its own."""

    def __init__(self, binary, folder, engine, name, command):
        self.binary, self.engine, self.name, self.command = binary, engine, name, command
        self.place = Path(folder) / name
        ignored = shutil.ignore_patterns("node_modules", "__pycache__", "cassettes")
        shutil.copytree(ROOT / "examples" / name, self.place, ignore=ignored)
        self.cassettes, self.recorded_before = self.place / "cassettes", Path(folder).parent / f"recorded-{name}"

    def run(self, arguments, flags=(), more=(), **variables):
        command = [self.binary, *arguments, "--cassette", "cassettes/", *flags, "--", *self.command, *more]
        environment = {**os.environ, **variables}
        for name in ("OPENAI_API_KEY", "VLLM_VCR_URL", "VLLM_VCR_MODE"):
            environment.pop(name, None)
        done = subprocess.run(
            [str(part) for part in command], cwd=self.place, env=environment, text=True, timeout=300, capture_output=True
        )
        if "--show" in sys.argv:
            typed = " ".join(["vllm-vcr", *map(str, command[1:])])
            print(f"\n$ {typed}\n{done.stdout}{done.stderr}[exit code {done.returncode}]", flush=True)
        return done.returncode, done.stdout + done.stderr

    def tap(self, *flags, more=()):
        return self.run(["tap", "--upstream", self.engine], flags, more)

    def play(self, *flags, more=()):
        return self.run(["play", "--strict"], flags, more)

    def files(self):
        return {path.name: path.read_text() for path in self.cassettes.glob("*.yaml")}

    def edit(self, file, old, new):
        path = self.place / file
        text = path.read_text()
        assert old in text, (file, old)
        path.write_text(text.replace(old, new))

    def recorded(self, count):
        """Records all tests, once for all cases."""
        if not self.recorded_before.exists():
            code, said = self.tap()
            assert code == 0 and f"({count} sessions recorded separately)" in said, said
            assert len(self.files()) == count, sorted(self.files())
            shutil.copytree(self.cassettes, self.recorded_before)
        elif not self.cassettes.exists():
            shutil.copytree(self.recorded_before, self.cassettes)


def pytest_example(it):
    it.recorded(12)
    code, said = it.play("--block-network")
    assert code == 0 and "12 passed" in said and "12 sessions ended" in said, said


def pytest_with_some_tests(it):
    it.recorded(12)
    code, said = it.play(more=["-k", "test_weather and London"])
    assert code == 0 and "1 passed" in said and "unconsumed" not in said, said


def pytest_with_a_deleted_cassette(it):
    it.recorded(12)
    before, [name] = it.files(), [name for name in it.files() if "test_weather-London" in name]
    (it.cassettes / name).unlink()
    code, said = it.play()
    assert code == 1 and "11 passed" in said and "1 error" in said, said
    assert f"{name} does not exist; record it: vllm-vcr tap --upstream URL --cassette cassettes/ -- COMMAND" in said, said
    code, said = it.tap()
    assert code == 0 and "recorded 2 interactions" in said, said
    assert it.files() == before, sorted(it.files())


def pytest_with_an_edited_prompt(it):
    it.recorded(12)
    it.edit("test_agent.py", "You are a weather bot.", "You are a careful weather bot.")
    code, said = it.play()
    assert code == 1 and "6 failed" in said and "6 passed" in said, said
    assert "messages[0].content is 'You are a careful weather bot.', recorded 'You are a weather bot.'" in said, said
    assert "failed: miss" in said, said
    for path in it.cassettes.glob("*test_weather*.yaml"):
        path.unlink()
    assert it.tap()[0] == 0
    code, said = it.play()
    assert code == 0 and "12 passed" in said, said


def pytest_that_swallows_its_errors(it):
    asks = "ask(client, [{'role': 'user', 'content': 'rainy in London'}])"
    (it.place / "test_more.py").write_text(SWALLOWS.format(call=asks))
    code, said = it.tap(more=["test_more.py"])
    assert code == 0, said
    for call, why in [
        (asks, None),
        (asks.replace("London", "Berlin"), "failed: miss"),
        ("pass", "failed: unconsumed"),
        (asks + "\n        urllib.request.urlopen('http://api.example.com/search')", "failed: blocked"),
    ]:
        (it.place / "test_more.py").write_text(SWALLOWS.format(call=call))
        code, said = it.play("--block-network", more=["test_more.py"])
        assert "1 passed" in said, said
        assert (code, why is None or why in said) == (0 if why is None else 1, True), (call, said)


def pytest_that_fails_while_it_is_recorded(it):
    asks = "ask(client, [{'role': 'user', 'content': 'rainy in London'}])"
    for end, files in [("; assert False", 0), ("", 1)]:
        (it.place / "test_more.py").write_text(SWALLOWS.format(call="pass") + f"    {asks}{end}\n")
        code, said = it.tap(more=["test_more.py"])
        assert (code != 0) == bool(end) and len(it.files()) == files, (end, it.files(), said)


def pytest_with_a_session_per_worker(it):
    conftest = """
import os, openai, pytest

@pytest.fixture(scope="session")
def client():
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return openai.OpenAI(base_url=f"{os.environ['VLLM_VCR_URL']}/vcr/s/{worker}/v1")
"""
    (it.place / "conftest.py").write_text(conftest)
    code, said = it.tap()
    assert code == 0 and list(it.files()) == ["default.yaml"] and "recorded 18 interactions" in said, said
    for more in ([], ["-k", "London"]):
        code, said = it.play(more=more)
        assert code == (1 if more else 0), said
        assert not more or "failed: unconsumed" in said, said
    # A part of the tests leaves records of the shared cassette.
    code, said = it.run(["play", "--fail-on", "miss,loose"], more=["-k", "London"])
    assert code == 0 and "2 passed" in said, said


def vitest_example(it):
    it.recorded(6)
    code, said = it.play()
    assert code == 0 and "6 passed" in said, said
    code, said = it.play(more=["-t", "whole London"])
    assert code == 0 and "1 passed" in said, said
    name = next(name for name in it.files() if "whole-London" in name)
    text = (it.cassettes / name).read_text()
    (it.cassettes / name).unlink()
    code, said = it.play()
    assert code == 1 and f"{name} does not exist; record it" in said and "5 passed" in said, said
    (it.cassettes / name).write_text(text)
    it.edit("agent.test.js", "`rainy in ${city}` }]", "`stormy in ${city}` }]")
    code, said = it.play()
    assert code == 1 and "messages[0].content is 'stormy in London', recorded 'rainy in London'" in said, said
    assert "3 failed" in said and "3 passed" in said, said


def go_example(it):
    it.recorded(3)
    code, said = it.play()
    assert code == 0 and "PASS" in said, said
    code, said = it.play(more=["-run", "TestWeather/London"])
    assert code == 0, said
    name = next(name for name in it.files() if "London" in name)
    (it.cassettes / name).unlink()
    code, said = it.play()
    assert code == 1 and f"{name} does not exist; record it" in said, said
    assert it.tap()[0] == 0
    it.edit("agent_test.go", '"rainy in "+city); !', '"stormy in "+city); !')
    code, said = it.play()
    assert code == 1 and "messages[0].content is 'stormy in London', recorded 'rainy in London'" in said, said


FRAMEWORKS = {
    "pytest": (
        [PYTHON, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"],
        [
            pytest_example,
            pytest_with_some_tests,
            pytest_with_a_deleted_cassette,
            pytest_with_an_edited_prompt,
            pytest_that_swallows_its_errors,
            pytest_that_fails_while_it_is_recorded,
            pytest_with_a_session_per_worker,
        ],
        True,
    ),
    # A machine that checks other things at the same time takes longer than its 5 s.
    "vitest": (["npx", "vitest", "run", "--testTimeout=120000"], [vitest_example], NODE_MODULES.exists()),
    "go": ([GO, "test", "-count=1", "-v", "./..."], [go_example], GO is not None),
}


def main(binary):
    named = [name for name in sys.argv[2:] if name in FRAMEWORKS]
    chosen = named or [name for name, (_, _, is_installed) in FRAMEWORKS.items() if is_installed]
    passed, failed = 0, 0
    # The engine complains of every client that closes its connection.
    complaints = subprocess.DEVNULL
    with tempfile.TemporaryDirectory() as outside, scripted_engine(Path(__file__).parent / "engine.py", complaints) as engine:
        for name in chosen:
            command, cases, _ = FRAMEWORKS[name]
            for case in cases:
                with tempfile.TemporaryDirectory(dir=outside) as folder:
                    it = Framework(binary, folder, engine, name, command)
                    if name == "vitest":
                        (it.place / "node_modules").symlink_to(NODE_MODULES)
                    try:
                        case(it)
                        passed += 1
                    except Exception as error:
                        failed += 1
                        print(f"FAILED {case.__name__}: {error}", flush=True)
    print(f"{', '.join(chosen)}: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
