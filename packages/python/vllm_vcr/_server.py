"""A server of the program, and its sessions."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from types import TracebackType
from typing import IO, Any, Mapping, Sequence

from vllm_vcr._binary import binary

# Prints the server's URL, then waits until this process closes its end or is gone: so no server outlives it.
_COMMAND = ("/bin/sh", "-c", 'printf "%s\\n" "$VLLM_VCR_URL"; exec cat >/dev/null')

# What a server around this process has set: it is meant for this process, and not for a server that is started here.
_OF_A_SERVER = ("VLLM_VCR_URL", "VLLM_VCR_MODE", "VLLM_VCR_BASE_TIME")

# Seconds in which a server has to end, once nothing is sent any more.
_END = 60.0

# Seconds for an answer to a request about sessions: ending one waits for what is still answered.
_ANSWER = 120.0

# Bytes of a server's log that an error shows.
_SHOWN = 4000


class VcrError(Exception):
    """What a server refused, or a server that could not be started or ended with a failure; the text is the server's own."""


class Session:
    """A session of a server, which is played and recorded by itself. Its URLs are those for the clients of one test."""

    def __init__(self, server: Server, opened: Mapping[str, Any]) -> None:
        self.server = server
        #: The name.
        self.name: str = opened["name"]
        #: The URL of clients of OpenAI's kind, which ends with ``/v1``.
        self.base_url: str = server.url + opened["base_url"]
        #: The variables in which clients look for a URL, with this session's.
        self.env: dict[str, str] = {name: server.url + path for name, path in opened["env"].items()}
        #: The URL before ``/v1``.
        self.url: str = self.env["VLLM_VCR_URL"]
        self._is_open = True

    def mcp_url(self, server: str) -> str:
        """The URL of an MCP server."""
        return f"{self.url}/mcp/{server}"

    def upstream_url(self, name: str) -> str:
        """The URL of an upstream that has a name (``--upstream NAME=URL``), without ``/v1``."""
        return f"{self.url}/vcr/u/{name}"

    def misses(self) -> list[dict[str, Any]]:
        """The requests that had no record, each with the closest record, the differences and what helps."""
        return self.server.misses(self.name)

    def report(self) -> dict[str, Any]:
        """What was served, missed and left."""
        return self.server.report(self.name)

    def verify(self, fail_on: Sequence[str] = ("miss", "unconsumed")) -> list[str]:
        """What of ``fail_on`` has happened in this session."""
        return self.server.verify(fail_on, self.name)

    def end(self, *, drop: bool = False) -> None:
        """Ends the session; what it recorded is in its cassette then, or dropped, so that a cassette that was there is as it was."""
        if self._is_open:
            self._is_open = False
            recorded = "drop" if drop else "keep"
            self.server._ask("DELETE", f"/vcr/sessions/{urllib.parse.quote(self.name)}?recorded={recorded}")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"Session({self.url!r})"


class Server:
    """A running server. :func:`play` and :func:`tap` start one, :func:`connect` takes one that runs."""

    def __init__(self, url: str) -> None:
        #: The URL without a path, such as ``http://127.0.0.1:8000``.
        self.url = url.rstrip("/")
        #: The URL of clients of OpenAI's kind.
        self.base_url = f"{self.url}/v1"
        token = os.environ.get("VLLM_VCR_ADMIN_TOKEN")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        # Proxies of the environment are for other servers.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def mcp_url(self, server: str) -> str:
        """The URL of an MCP server."""
        return f"{self.url}/mcp/{server}"

    def session(
        self,
        name: str,
        *,
        cassette: str | None = None,
        mode: str | None = None,
        match: str | Sequence[str] | None = None,
        on_miss: str | None = None,
        record_with: str | None = None,
        if_missing: str | None = None,
        if_unended: str | None = None,
    ) -> Session:
        """Opens a session: ``cassette`` is a file below the server's folder, ``record_with`` the command that errors name for
        recording it. ``if_missing="open"`` opens it without the file too: its requests are misses then. ``if_unended="drop"`` drops
        what it recorded where it is not ended. What is left out is as the server was started. One of that name begins anew."""
        ways = match if match is None or isinstance(match, str) else list(match)
        asked = {
            "name": name,
            "cassette": cassette,
            "mode": mode,
            "match": ways,
            "on_miss": on_miss,
            "record_with": record_with,
            "if_missing": if_missing,
            "if_unended": if_unended,
        }
        return Session(self, self._ask("POST", "/vcr/sessions", asked))

    def report(self, session: str | None = None) -> dict[str, Any]:
        """What was served, missed and left, in all sessions or one."""
        return dict(self._ask("GET", "/vcr/report" + _of(session)))

    def misses(self, session: str | None = None) -> list[dict[str, Any]]:
        """The requests that had no record."""
        return list(self._ask("GET", "/vcr/misses" + _of(session)))

    def verify(self, fail_on: Sequence[str] = ("miss", "unconsumed"), session: str | None = None) -> list[str]:
        """What of ``fail_on`` has happened, in all open sessions or one."""
        asked = {"fail_on": list(fail_on), "session": session}
        return list(self._ask("POST", "/vcr/verify", asked, also=409).get("failing", []))

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, also: int = 200) -> Any:
        data = None
        if body is not None:
            data = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
        headers = {**self._headers, "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=_ANSWER) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            text = refused.read().decode(errors="replace")
            status = refused.code
        except OSError as error:
            raise VcrError(f"{self.url} does not answer: {error}") from None
        try:
            answered = json.loads(text)
        except ValueError:
            answered = {"error": text}
        if status == also:
            return answered
        why = answered.get("error", text) if isinstance(answered, dict) else text
        raise VcrError(str(why.get("message", why) if isinstance(why, dict) else why))

    def __repr__(self) -> str:
        return f"Server({self.url!r})"


def connect(url: str | None = None) -> _Connected:
    """Takes the server at a URL, or the one that this process was started under (``vllm-vcr play ... -- COMMAND``)."""
    found = url or os.environ.get("VLLM_VCR_URL")
    if not found:
        raise VcrError("no server: name its URL, or start this under one (vllm-vcr play ... -- COMMAND)")
    return _Connected(found)


class _Connected(Server):
    """A server that is somebody else's: leaving it ends nothing."""

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def play(*cassettes: str | os.PathLike[str], flags: Sequence[str] = ()) -> _Started:
    """Starts ``vllm-vcr play`` on cassettes: files, or one folder. ``flags`` are more of its flags, such as ``--strict``."""
    named = [word for cassette in cassettes for word in ("--cassette", os.fspath(cassette))]
    return _Started(["play", *named, *flags])


def tap(
    upstream: str | Sequence[str], cassette: str | os.PathLike[str] = "cassettes/", flags: Sequence[str] = ()
) -> _Started:
    """Starts ``vllm-vcr tap`` in front of a server, whose answers it records into a cassette; further upstreams as ``NAME=URL``."""
    upstreams = [upstream] if isinstance(upstream, str) else upstream
    named = [word for url in upstreams for word in ("--upstream", url)]
    return _Started(["tap", *named, "--cassette", os.fspath(cassette), *flags])


class _Started:
    """A server that is started on entering and ended on leaving; where it then fails (``--strict``), leaving raises."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Server:
        line = [str(binary()), *self._arguments, "--", *_COMMAND]
        environment = {name: value for name, value in os.environ.items() if name not in _OF_A_SERVER}
        self._log = tempfile.TemporaryFile()
        # In a group of its own: Ctrl-C is for this process, which then ends the server.
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
            text=True,
        )
        assert self._process.stdout is not None
        url = self._process.stdout.readline().strip()
        if not url:
            code = self._end()
            raise VcrError(f"vllm-vcr {self._arguments[0]} did not start (exit code {code}): {self._said()}")
        return Server(url)

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        code = self._end()
        said = self._said()
        assert self._log is not None
        self._log.close()
        if code != 0 and kind is None:
            raise VcrError(f"vllm-vcr {self._arguments[0]} ended with exit code {code}: {said}")

    def _end(self) -> int:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        try:
            return process.wait(_END)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _said(self) -> str:
        assert self._log is not None
        length = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, length - _SHOWN))
        said = self._log.read().decode(errors="replace").strip()
        # The command is this package's affair: who called `play` records with `tap`.
        advised = r"vllm-vcr tap --upstream (\S+) --cassette '?(.+?)'? -- " + re.escape(shlex.join(_COMMAND))
        return re.sub(advised, r'with vllm_vcr.tap("\1", "\2") as server: ...', said)


def _of(session: str | None) -> str:
    return "" if session is None else "?" + urllib.parse.urlencode({"session": session})
