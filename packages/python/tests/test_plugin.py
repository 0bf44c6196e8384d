"""The plugin in projects: recorded once, played in parallel, recorded again one at a time, and what a developer sees of a miss."""

import os
import signal
import subprocess
import sys
import time

import pytest
import vllm_vcr

THIRTY = """
import openai, pytest

def ask(client, text):
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}]).choices[0].message.content

@pytest.mark.parametrize("number", range(10))
def test_whole(vcr_cassette, number):
    assert ask(openai.OpenAI(), f"rain {number}") == f"It is rain {number}."

@pytest.mark.vcr
@pytest.mark.parametrize("number", range(10))
def test_stream(number):
    chunks = openai.OpenAI().chat.completions.create(
        model="m", messages=[{"role": "user", "content": f"snow {number}"}], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == f"It is snow {number}."

@pytest.mark.vcr
class TestAsync:
    @pytest.mark.parametrize("number", range(10))
    async def test_both(self, number):
        client = openai.AsyncOpenAI()
        for word in ("sun", "wind"):
            answer = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"{word} {number}"}])
            assert answer.choices[0].message.content == f"It is {word} {number}."
"""

ONE = """
import openai, pytest

def ask(text):
    return openai.OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": text}])

@pytest.mark.vcr(MARK)
def test_one():
    BODY
"""


def one(project, body='ask("rain")', mark=""):
    project.makepyfile(test_agent=ONE.replace("BODY", body).replace("MARK", mark))


def files(project):
    folder = project.path / "cassettes"
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.yaml")}


def contents(project):
    return {path: path.read_bytes() for path in (project.path / "cassettes").rglob("*") if path.is_file()}


def test_thirty_tests_are_recorded_once_and_played_in_parallel(project, run):
    project.makepyfile(test_agent=THIRTY)
    assert run("--vcr-mode=once", "-n", "4").parseoutcomes() == {"passed": 30}
    recorded = files(project)
    assert len(recorded) == 30 and "test_agent/TestAsync.test_both[3].yaml" in recorded, sorted(recorded)
    # What is played needs no engine, and one that was there would be asked.
    for workers in ("4", "0"):
        assert run("-n", workers, "-o", "vcr_upstream=http://127.0.0.1:9").parseoutcomes() == {"passed": 30}
    assert files(project) == recorded


def test_a_proxy_of_the_environment_is_for_other_servers(project, run, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    one(project)
    run("--vcr-mode=once").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)


def test_a_deleted_cassette_is_recorded_again_and_no_other(project, run):
    project.makepyfile(test_agent=THIRTY)
    run("--vcr-mode=once", "-n", "4").assert_outcomes(passed=30)
    before = files(project)
    gone = project.path / "cassettes" / "test_agent" / "test_whole[7].yaml"
    times = {path: path.stat().st_mtime_ns for path in gone.parent.iterdir() if path.suffix == ".yaml"}
    gone.unlink()
    result = run()
    result.assert_outcomes(passed=29, failed=1)
    advice = "*test_agent/test_whole?7?.yaml does not exist; record it: pytest --vcr-mode once 'test_agent.py::test_whole?7?'*"
    result.stdout.fnmatch_lines([advice])
    run("--vcr-mode=once", "-n", "4").assert_outcomes(passed=30)
    assert files(project).keys() == before.keys()
    changed = [path for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert changed == [gone]
    run().assert_outcomes(passed=30)


def test_a_miss_is_in_the_report_with_its_differences(project, run):
    one(project)
    run("--vcr-mode=once").assert_outcomes(passed=1)
    one(project, 'ask("hail")')
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*vllm-vcr: test_agent/test_one.yaml*",
            "*record it: delete test_agent/test_one.yaml and run pytest --vcr-mode once test_agent.py::test_one*",
            "*messages?0?.content: recorded 'rain' received 'hail'*",
        ]
    )


def test_a_swallowed_miss_fails_the_test(project, run):
    one(project)
    run("--vcr-mode=once").assert_outcomes(passed=1)
    one(project, 'with pytest.raises(openai.OpenAIError): ask("hail")')
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*vllm-vcr: miss*", "*messages?0?.content: recorded 'rain' received 'hail'*"])
    one(project, 'with pytest.raises(openai.OpenAIError): ask("hail")', "fail_on=[]")
    run().assert_outcomes(passed=1)


FIXTURE = """
import openai, pytest

def ask(text):
    return openai.OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": text}])

@pytest.fixture
def agent(vcr_cassette):
    SETUP
    yield
    TEARDOWN

def test_one(agent):
    ask("rain")
"""

SWALLOWED = 'with pytest.raises(openai.OpenAIError): ask("hail")'


def test_misses_of_fixtures_fail_the_test_too(project, run):
    def fixture(setup="pass", teardown="pass"):
        project.makepyfile(test_agent=FIXTURE.replace("SETUP", setup).replace("TEARDOWN", teardown))

    fixture()
    run("--vcr-mode=once").assert_outcomes(passed=1)
    fixture(teardown=SWALLOWED)
    result = run()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*vllm-vcr: miss*"])
    project.makepyfile(test_agent=ONE.replace("BODY", 'ask("hail")').replace("@pytest.mark.vcr(MARK)", "@pytest.mark.xfail\n@pytest.mark.vcr"))
    run().assert_outcomes(xfailed=1)
    fixture(setup='ask("hail")')
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*vllm-vcr: test_agent/test_one.yaml*", "*messages?0?.content: recorded 'rain' received 'hail'*"])


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="pytest has subtests from version 9 on")
def test_a_failed_subtest_records_nothing(project, run):
    project.makepyfile(
        test_agent=FIXTURE.replace("def test_one(agent):", "def test_one(agent, subtests):").replace("SETUP", "pass").replace("TEARDOWN", "pass")
        + "    with subtests.test('half'):\n        assert False\n"
    )
    assert run("--vcr-mode=once").ret == 1
    assert files(project) == {}


def test_marks_choose_what_counts(project, run):
    one(project, 'ask("rain"); ask("snow")')
    run("--vcr-mode=once").assert_outcomes(passed=1)
    one(project)
    run().assert_outcomes(passed=1)
    one(project, mark='fail_on="unconsumed"')
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*vllm-vcr: unconsumed*", "*not asked for: test_one.yaml#1*"])
    one(project, 'assert "novel" in ask("hail").choices[0].message.content', 'on_miss="stub"')
    run("-o", "vcr_fail_on=").assert_outcomes(passed=1)
    one(project, 'ask("hail")', 'match="ordered"')
    run().assert_outcomes(passed=1)


@pytest.mark.parametrize("mark, text", [('on_miss="guess"', "has to be error, stub, upstream or record, not `guess`"), ("mode=1", "takes match=")])
def test_a_wrong_mark_says_so(project, run, mark, text):
    one(project)
    run("--vcr-mode=once").assert_outcomes(passed=1)
    one(project, mark=mark)
    result = run()
    result.assert_outcomes(errors=1)
    assert text in result.stdout.str()


def test_new_records_are_added(project, run):
    one(project)
    run("--vcr-mode=once").assert_outcomes(passed=1)
    one(project, 'ask("rain"); ask("snow")')
    run("--vcr-mode=new-episodes").assert_outcomes(passed=1)
    [text] = files(project).values()
    assert text.count("It is rain.") == 1 and text.count("It is snow.") == 1, text
    one(project, 'ask("hail")')
    run("--vcr-mode=all").assert_outcomes(passed=1)
    [text] = files(project).values()
    assert "hail" in text and "snow" not in text


def test_the_environment_is_the_sessions(project, run):
    project.makepyfile(
        test_agent="""
import os
def test_urls(vcr_cassette):
    assert os.environ["OPENAI_BASE_URL"] == vcr_cassette.base_url == vcr_cassette.url + "/v1"
    assert os.environ["ANTHROPIC_BASE_URL"] == vcr_cassette.upstream_url("anthropic")
    assert os.environ["OPENAI_API_KEY"] == "vcr"
    assert vcr_cassette.mcp_url("shop") == vcr_cassette.url + "/mcp/shop"
def test_without():
    assert "OPENAI_BASE_URL" not in os.environ and "VLLM_VCR_URL" not in os.environ
"""
    )
    upstreams = ["--vcr-upstream=http://127.0.0.1:9", "--vcr-upstream=anthropic=http://127.0.0.1:9"]
    run("--vcr-mode=live", *upstreams).assert_outcomes(passed=2)


def test_two_tests_of_one_file_name_are_refused(project, run):
    project.makepyfile(test_agent="import pytest\n@pytest.mark.parametrize('x', ['a b', 'a-b'])\ndef test_x(vcr_cassette, x): pass")
    result = run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*both have the cassette test_agent/test_x?a-b?.yaml: rename one of them*"])


def test_an_upstream_that_is_none_is_refused_once(project, run):
    one(project)
    result = run("--vcr-mode=once", "--vcr-upstream=localhost:8000")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*`localhost:8000` is not an upstream URL*"])
    result.stdout.no_fnmatch_line("*During handling*")


def test_an_engine_that_is_not_there_leaves_no_cassette(project, run):
    one(project)
    run("--vcr-mode=once", "--vcr-upstream=http://127.0.0.1:9").assert_outcomes(failed=1, errors=1)
    assert files(project) == {}


def test_a_test_without_requests_needs_no_cassette(project, run):
    module = "import pytest\npytestmark = pytest.mark.vcr\ndef test_pure(): assert 1 + 1 == 2\n"
    project.makepyfile(test_m=module)
    for arguments in (["--vcr-mode=once"], [], ["-o", "vcr_fail_on=miss unconsumed"]):
        run(*arguments).assert_outcomes(passed=1)
    assert files(project) == {}
    project.makepyfile(test_m=module.replace("== 2", "== 3"))
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*does not exist*")


@pytest.mark.parametrize(
    "body, outcome",
    [
        ('ask("rain")', {"failed": 1}),
        ('with pytest.raises(openai.OpenAIError): ask("rain")', {"failed": 1}),
        ('with pytest.raises(openai.OpenAIError): ask("rain")\n    pytest.skip("no engine")', {"failed": 1}),
    ],
)
def test_a_request_without_a_cassette_names_the_command(project, run, body, outcome):
    one(project, body, "fail_on=[]")
    result = run()
    result.assert_outcomes(**outcome)
    advice = "test_agent/test_one.yaml does not exist; record it: pytest --vcr-mode once test_agent.py::test_one"
    result.stdout.fnmatch_lines([f"*{advice}*"])
    result.stdout.no_fnmatch_line("*POST /vcr/sessions*")


def test_a_fixture_without_a_cassette_names_the_command(project, run):
    fixture = "@pytest.fixture\ndef answer(vcr_cassette): return ask('rain')\n"
    project.makepyfile(test_agent=ONE.replace("@pytest.mark.vcr(MARK)\n", fixture).replace("test_one()", "test_one(answer)").replace("BODY", "pass"))
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_agent/test_one.yaml does not exist; record it: pytest --vcr-mode once *"])
    case = "import unittest\n" + ONE.replace("(MARK)", "").replace("def test_one(", "class TestOne(unittest.TestCase):\n  def test_one(self")
    project.makepyfile(test_agent=case.replace("BODY", 'ask("rain")'))
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_agent/TestOne.test_one.yaml does not exist; record it: pytest --vcr-mode once *"])


SIX = """
import openai, pathlib, pytest, time

@pytest.mark.vcr
@pytest.mark.parametrize("number", range(6))
def test_a(number):
    for word in ("sun", "wind"):
        content = f"{word} {number}"
        openai.OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": content}])
        if number == 2 and word == "sun":
            STOP
"""


def ended_by(project, end, *arguments):
    """Runs pytest until a test is halfway, ends it so, and returns its exit code when its server has ended too."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    # As in a terminal, where a shell's jobs in the background would not get it.
    child = subprocess.Popen(command, cwd=project.path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    half = project.path / "half"
    while not half.exists():
        assert child.poll() is None
        time.sleep(0.05)
    half.unlink()
    os.kill(child.pid, end)
    code = child.wait(60)
    while subprocess.run(["pgrep", "-f", f"{project.path}/cassettes"], stdout=subprocess.DEVNULL).returncode == 0:
        time.sleep(0.05)
    return code


@pytest.mark.parametrize("end, code", [(signal.SIGINT, pytest.ExitCode.INTERRUPTED), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)])
def test_what_was_recorded_for_an_interrupted_test_is_dropped(project, run, end, code):
    project.makepyfile(test_a=SIX.replace("STOP", 'pathlib.Path("half").touch(); time.sleep(60)'))
    assert ended_by(project, end, "--vcr-mode=once") == code
    assert sorted(files(project)) == ["test_a/test_a[0].yaml", "test_a/test_a[1].yaml"]
    assert sorted(path.name for path in (project.path / "cassettes" / "test_a").iterdir() if path.is_dir()) == ["test_a[0].vcr", "test_a[1].vcr"]
    project.makepyfile(test_a=SIX.replace("STOP", "pass"))
    run("--vcr-mode=once").assert_outcomes(passed=6)
    run().assert_outcomes(passed=6)


@pytest.mark.parametrize("mode", ["new-episodes", "all"])
def test_a_cassette_that_was_there_is_as_it_was_after_a_kill(project, run, mode):
    one(project)
    run("--vcr-mode=once").assert_outcomes(passed=1)
    before = contents(project)
    one(project, 'ask("rain"); ask("hail"); open("half", "w"); __import__("time").sleep(60)')
    assert ended_by(project, signal.SIGKILL, f"--vcr-mode={mode}") == -signal.SIGKILL
    assert contents(project) == before


@pytest.mark.parametrize("mode", ["once", "new-episodes", "all"])
def test_what_was_recorded_for_a_failed_test_is_dropped(project, run, mode):
    one(project, 'ask("rain"); assert False')
    run(f"--vcr-mode={mode}").assert_outcomes(failed=1)
    assert files(project) == {} and not list(project.path.rglob("*.vcr"))
    one(project, 'ask("rain"); ask("snow")')
    run("--vcr-mode=once").assert_outcomes(passed=1)
    before = contents(project)
    one(project, 'ask("rain"); ask("hail"); assert False')
    run(f"--vcr-mode={mode}").assert_outcomes(failed=1)
    assert contents(project) == before
    one(project, 'ask("wind"); pytest.xfail("as expected")')
    run("--vcr-mode=all").assert_outcomes(xfailed=1)
    [text] = files(project).values()
    assert "wind" in text, "a test that ends as expected is recorded"


def test_a_missing_cassette_is_recorded_in_the_words_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("nosuch.yaml", "no such.yaml"):
        with pytest.raises(vllm_vcr.VcrError) as raised, vllm_vcr.play(name):
            pass
        advice = f'hint: record it: with vllm_vcr.tap("http://localhost:8000", "{name}") as server: ...'
        assert str(raised.value).endswith(advice), raised.value
