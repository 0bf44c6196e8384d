"""Runs projects of their own with pytest, in front of a scripted engine that counts what it is asked."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests" / "sdk"))

from scripted_engine import scripted_engine  # noqa: E402

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def engine():
    with scripted_engine(ROOT / "tests" / "frameworks" / "engine.py", subprocess.DEVNULL) as url:
        yield url


@pytest.fixture
def project(pytester, monkeypatch, engine):
    """A project whose tests talk to the engine while they are recorded."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "VLLM_VCR_URL", "VLLM_VCR_MODE", "CI"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini(f"[pytest]\nvcr_upstream = {engine}\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    return pytester


@pytest.fixture
def run(project):
    def run(*arguments):
        return project.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    return run
