"""A cassette per test: a session that plays cassettes/NAME.yaml, or records it (see docs/src/guides/test-frameworks.md)."""

import json
import os
import re
import urllib.error
import urllib.request

import openai
import pytest

SERVER = os.environ.get("VLLM_VCR_URL", "http://localhost:8000")


def vcr(method, path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(SERVER + path, data, {"content-type": "application/json"}, method=method)
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as refused:
        why = json.load(refused)["error"]
    pytest.fail(why, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    item.failed = getattr(item, "failed", False) or report.failed
    return report


@pytest.fixture
def client(request):
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.node.nodeid)[-100:]
    mode = os.environ.get("VLLM_VCR_MODE", "none")
    opened = {"name": name, "cassette": f"{name}.yaml", "mode": mode, "if_unended": "drop"}
    session = vcr("POST", "/vcr/sessions", opened)
    yield openai.OpenAI(base_url=SERVER + session["base_url"])
    vcr("DELETE", f"/vcr/sessions/{name}?recorded={'drop' if request.node.failed else 'keep'}")
