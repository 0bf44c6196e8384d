"""The plugin in projects: recorded once, played in parallel, recorded again one at a time, and what a developer sees of a miss."""

import pytest

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


def test_thirty_tests_are_recorded_once_and_played_in_parallel(project, run):
    project.makepyfile(test_agent=THIRTY)
    assert run("--vcr-mode=once", "-n", "4").parseoutcomes() == {"passed": 30}
    recorded = files(project)
    assert len(recorded) == 30 and "test_agent/TestAsync.test_both[3].yaml" in recorded, sorted(recorded)
    # What is played needs no engine, and one that was there would be asked.
    for workers in ("4", "0"):
        assert run("-n", workers, "-o", "vcr_upstream=http://127.0.0.1:9").parseoutcomes() == {"passed": 30}
    assert files(project) == recorded


def test_a_deleted_cassette_is_recorded_again_and_no_other(project, run):
    project.makepyfile(test_agent=THIRTY)
    run("--vcr-mode=once", "-n", "4").assert_outcomes(passed=30)
    before = files(project)
    gone = project.path / "cassettes" / "test_agent" / "test_whole[7].yaml"
    times = {path: path.stat().st_mtime_ns for path in gone.parent.iterdir() if path.suffix == ".yaml"}
    gone.unlink()
    result = run()
    result.assert_outcomes(passed=29, errors=1)
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


def test_an_engine_that_is_not_there_leaves_no_cassette(project, run):
    one(project)
    run("--vcr-mode=once", "--vcr-upstream=http://127.0.0.1:9").assert_outcomes(failed=1, errors=1)
    assert files(project) == {}
