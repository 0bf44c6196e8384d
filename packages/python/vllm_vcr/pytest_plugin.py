"""The pytest plugin: a server for each process of a run, and a session with a cassette of its own for each test.

A test asks for the fixture ``vcr_cassette``, or has the mark ``vcr``; clients that read ``OPENAI_BASE_URL`` and the like then
talk to the test's session. What is matched, recorded and refused is the server's affair.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import urllib.parse
from pathlib import Path
from typing import Any, Generator, Iterator

import pytest

from vllm_vcr._server import Server, Session, VcrError, connect, play, tap

MODES = ("none", "once", "new-episodes", "all", "live", "compare")

_SESSION = pytest.StashKey[Session]()

# Whether a test failed since it left records.
_LEFT = pytest.StashKey[bool]()

# How a test ended with its subtests: passed, skipped (or failed as expected), failed.
_OUTCOME = pytest.StashKey[str]()

# Characters of a file's name, without its suffix.
_LONGEST = 100

# Keys that clients refuse to do without; a server that only plays asks for none.
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vllm-vcr", "recorded answers of LLM engines (vllm-vcr)")
    group.addoption(
        "--vcr-mode",
        choices=MODES,
        help="what is played and what is recorded: none plays; once records cassettes that are not there; new-episodes adds what "
        "is not in them; all records anew; live and compare send everything to the real server",
    )
    group.addoption(
        "--vcr-upstream",
        action="append",
        metavar="URL",
        help="the real server for recording; a further one that requests name: NAME=URL",
    )
    parser.addini("vcr_mode", "the mode without --vcr-mode (none)", default="none")
    parser.addini("vcr_upstream", "the real servers without --vcr-upstream, one a line", type="linelist")
    parser.addini("vcr_cassettes", "the folder of cassettes, from the folder of this file", default="cassettes")
    parser.addini("vcr_flags", "further flags of the server", type="args")
    parser.addini("vcr_tap_flags", "further flags of the server while it may record, such as --redact all", type="args")
    parser.addini("vcr_fail_on", "what fails a test by itself: miss, unconsumed, loose ...", type="args", default="miss")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "vcr(match=None, on_miss=None, fail_on=None): play the test's cassette, or record it. match: the ways to find a record, "
        "such as 'canonical,ordered'; on_miss: what a request without a record gets (error, stub, upstream, record); fail_on: what "
        "fails the test by itself, such as ['miss', 'unconsumed'].",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses tests that would share a cassette without knowing."""
    known: dict[str, str] = {}
    for item in filter(_has_cassette, items):
        file = cassette_of(item)
        other = known.setdefault(file, item.nodeid)
        if other != item.nodeid:
            raise pytest.UsageError(f"{other} and {item.nodeid} both have the cassette {file}: rename one of them")


def _has_cassette(item: pytest.Item) -> bool:
    return "vcr_cassette" in getattr(item, "fixturenames", ()) or item.get_closest_marker("vcr") is not None


def cassette_of(item: pytest.Item) -> str:
    """Returns the file of a test's cassette, below the folder of cassettes: ``module/test.yaml``."""
    module, _, name = item.nodeid.partition("::")
    folder = Path(module).with_suffix("")
    parts = [part for part in folder.parts if part not in ("..", folder.anchor)]
    return "/".join([*map(_plain, parts), _plain(name.replace("::", ".")) + ".yaml"])


def _plain(name: str) -> str:
    """A name of letters that every file system takes; a long one keeps its beginning, and a hash of all of it."""
    plain = re.sub(r"[^A-Za-z0-9_.\[\]-]+", "-", name)
    if len(plain) <= _LONGEST:
        return plain
    return f"{plain[: _LONGEST - 9]}-{_hash(name)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@pytest.fixture(scope="session")
def vcr_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The server of this process: each worker of pytest-xdist has its own. Under ``vllm-vcr play ... -- pytest`` it is that one."""
    outer = os.environ.get("VLLM_VCR_URL")
    try:
        with connect(outer) if outer else _started(pytestconfig) as server:
            yield server
    except VcrError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _started(config: pytest.Config) -> Any:
    mode = _mode(config)
    folder = f"{_folder(config)}/"
    flags = ["--sessions-only", *config.getini("vcr_flags")]
    if mode == "none":
        return play(folder, flags=[*flags, "--instant"])
    flags += ["--listen", "127.0.0.1:0", *config.getini("vcr_tap_flags")]
    if mode == "all":
        flags.append("--admin-overwrite")
    return tap(_upstreams(config), folder, flags)


def _folder(config: pytest.Config) -> Path:
    return config.rootpath / str(config.getini("vcr_cassettes"))


def _mode(config: pytest.Config) -> str:
    mode = str(config.getoption("--vcr-mode") or os.environ.get("VLLM_VCR_MODE") or config.getini("vcr_mode"))
    if mode not in MODES:
        raise pytest.UsageError(f"vcr_mode (or VLLM_VCR_MODE) has to be one of {', '.join(MODES)}, not {mode}")
    return mode


def _upstreams(config: pytest.Config) -> list[str]:
    """The real servers: those that were named, else those that clients would call."""
    named: list[str] = config.getoption("--vcr-upstream") or config.getini("vcr_upstream")
    if named:
        return named
    openai = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com"
    anthropic = os.environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
    return [re.sub(r"/v1/?$", "", openai), f"anthropic={anthropic}"]


@pytest.fixture
def vcr_cassette(request: pytest.FixtureRequest, vcr_server: Server) -> Iterator[Session]:
    """The test's session, which plays its cassette or records it; the environment's URLs of LLM servers are the session's."""
    item = request.node
    for key in (_SESSION, _OUTCOME, _LEFT):
        if key in item.stash:
            # Of an earlier try.
            del item.stash[key]
    with pytest.MonkeyPatch.context() as patch:
        session = _opened(item, vcr_server)
        for name, url in session.env.items():
            patch.setenv(name, url)
        for name in _KEYS:
            if not os.environ.get(name):
                patch.setenv(name, "vcr")
        # Proxies of the environment are for other servers.
        host = urllib.parse.urlsplit(session.url).hostname
        spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        # All hosts are spared by "*" where nothing else is named.
        if spared != "*":
            for name in ("NO_PROXY", "no_proxy"):
                patch.setenv(name, f"{spared},{host}" if spared else f"{host}")
        item.stash[_SESSION] = session
        yield session
    try:
        ended = item.stash.get(_OUTCOME, "failed")
        # What fixtures sent when they were torn down.
        failed = _failing(item, session) if ended == "passed" else []
        # Half of a cassette would miss in every later run.
        session.end(drop=ended == "failed" or bool(failed))
    except VcrError as error:
        failed = [str(error)]
    if failed:
        raise pytest.fail.Exception(f"vllm-vcr: {', '.join(failed)}", pytrace=False)


@pytest.fixture(autouse=True)
def _vcr_mark(request: pytest.FixtureRequest) -> None:
    """Gives the tests with the mark their cassette."""
    if request.node.get_closest_marker("vcr") is not None:
        request.getfixturevalue("vcr_cassette")


def _opened(item: pytest.Item, server: Server) -> Session:
    name = f'{re.sub(r"[^A-Za-z0-9_.-]+", "-", item.nodeid)[-_LONGEST + 9 :]}-{_hash(item.nodeid)}'
    asked = _marked(item)
    asked.pop("fail_on", None)
    try:
        return server.session(
            name,
            cassette=cassette_of(item),
            mode=_mode(item.config),
            record_with=f"pytest --vcr-mode once {shlex.quote(item.nodeid)}",
            # Nothing is recorded for a test that sends nothing.
            if_missing="open",
            if_unended="drop",
            **asked,
        )
    except VcrError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _marked(item: pytest.Item) -> dict[str, Any]:
    """The arguments of the marks of a test, the closest first."""
    asked: dict[str, Any] = {}
    for mark in item.iter_markers("vcr"):
        unknown = set(mark.kwargs) - {"match", "on_miss", "fail_on"}
        if unknown or mark.args:
            wrong = ", ".join([*map(repr, mark.args), *sorted(unknown)])
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.vcr takes match=, on_miss= and fail_on=, not {wrong}")
        asked = {**mark.kwargs, **asked}
    return asked


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Fails a test that swallowed a miss, or whatever else ``fail_on`` names, and one whose cassette does not exist."""
    outcome = yield
    session = item.stash.get(_SESSION, None)
    if session is None:
        return
    try:
        failed = _failing(item, session) if outcome.excinfo is None else session.verify(["no_cassette"])
    except VcrError as error:
        failed = [str(error)]
    if failed:
        item.stash[_LEFT] = "unconsumed" in failed
        _fail(outcome, f"vllm-vcr: {', '.join(failed)}")


def _failing(item: pytest.Item, session: Session) -> list[str]:
    """What happened of that which fails the test by itself."""
    fail_on = _marked(item).get("fail_on", item.config.getini("vcr_fail_on"))
    return session.verify([*([fail_on] if isinstance(fail_on, str) else fail_on), "no_cassette"])


def _fail(outcome: Any, text: str) -> None:
    """Makes a test fail with a text, in place of what it raised; not where it was interrupted."""
    if outcome.excinfo is not None and issubclass(outcome.excinfo[0], (KeyboardInterrupt, pytest.exit.Exception)):
        return
    outcome.force_exception(pytest.fail.Exception(text, pytrace=False))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Shows what had no record, and how it differs from what was recorded, beside a failure."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    session = item.stash.get(_SESSION, None)
    if session is None or report.when == "teardown":
        return
    # A test whose subtest failed has a report of its own, in which it passed.
    if report.when == "call" and item.stash.get(_OUTCOME, "") != "failed":
        item.stash[_OUTCOME] = report.outcome
    if not report.failed:
        return
    try:
        sections = list(_shown_misses(session))
        if item.stash.get(_LEFT, False):
            sections.extend(_shown_unconsumed(session))
    except VcrError as error:
        sections = [str(error)]
    if sections:
        report.sections.append((f"vllm-vcr: {cassette_of(item)}", "\n\n".join(sections)))


def _shown_misses(session: Session) -> Iterator[str]:
    for miss in session.misses():
        error = miss.get("error", {})
        yield str(error.get("message", miss))


def _shown_unconsumed(session: Session) -> Iterator[str]:
    left = session.report().get("sessions", {}).get(session.name, {}).get("begun_unconsumed", [])
    if left:
        yield "not asked for: " + ", ".join(str(record) for record in left)
