"""An HTTP/1.1 client that keeps what others hide: header order, every chunk of a chunked body, informational responses."""

import io
import itertools
import socket
from dataclasses import dataclass, field


@dataclass
class Answer:
    """One response as it came over the wire. `chunks` is None when the body was not chunked."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[bytes] | None = None
    interim: list[int] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def streamed(self) -> bool:
        return (self.header("content-type") or "").startswith("text/event-stream")

    @property
    def events(self) -> list[bytes]:
        """The events of a stream, each without its closing blank line."""
        return [event for event in self.body.split(b"\n\n") if event]


def request_bytes(host: str, method: str, path: str, headers: dict[str, str], body: bytes | None) -> tuple[bytes, bytes]:
    """The head and the body of a request. A `Transfer-Encoding` among the headers sends the body in small chunks."""
    lines = {"Host": host, "Accept": "*/*"}
    if body is not None and "Transfer-Encoding" not in headers:
        lines["Content-Length"] = str(len(body))
    lines |= headers
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items()) + "\r\n"
    if body is not None and "Transfer-Encoding" in headers:
        parts = [body[at : at + 50] for at in range(0, len(body), 50)] + [b""]
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head.encode("latin-1"), body or b""


class Connection:
    """A connection that is kept alive as long as the server keeps it, and opened again when it does not."""

    def __init__(self, host: str, port: int):
        self.address, self.socket = (host, port), None

    def close(self) -> None:
        if self.socket:
            self.reader.close()
            self.socket.close()
        self.socket = None

    def open(self) -> None:
        self.socket = socket.create_connection(self.address, timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb")

    def exchange(self, method: str, path: str, headers: dict[str, str], body: bytes | None, most_chunks: int | None = None) -> Answer:
        """`most_chunks`: the client gives up after so many of the body."""
        head, payload = request_bytes("engine.test", method, path, headers, body)
        for fresh in (self.socket is None, True):
            if fresh:
                self.close()
                self.open()
            try:
                self.socket.sendall(head if "Expect" in headers else head + payload)
                line = self.reader.readline()
            except (ConnectionError, BrokenPipeError):
                line = b""
            if line:
                break
        else:
            raise ConnectionError(f"{method} {path}: closed before an answer")
        answer = self._answer(line, method, payload if "Expect" in headers else b"", most_chunks)
        if most_chunks is not None:
            self.close()
        return answer

    @classmethod
    def parse(cls, data: bytes) -> Answer:
        """The answer in `data`, the bytes of one response."""
        self = cls("", 0)
        self.reader = io.BytesIO(data)
        return self._answer(self.reader.readline(), "GET", b"")

    def _answer(self, line: bytes, method: str, held_back: bytes, most_chunks: int | None = None) -> Answer:
        answer = Answer(int(line.split()[1]), self._headers(), b"")
        while answer.status < 200:
            if held_back:
                self.socket.sendall(held_back)
            status = int(self.reader.readline().split()[1])
            answer = Answer(status, self._headers(), b"", None, answer.interim + [answer.status])
        if answer.header("transfer-encoding") == "chunked":
            answer.chunks = list(itertools.islice(self._chunks(), most_chunks))
            answer.body = b"".join(answer.chunks)
        elif length := answer.header("content-length"):
            answer.body = b"" if method == "HEAD" else self.reader.read(int(length))
        elif answer.status not in (204, 304):
            answer.body = self.reader.read()
        if answer.header("connection") == "close":
            self.close()
        return answer

    def _headers(self) -> list[tuple[str, str]]:
        headers = []
        while (line := self.reader.readline().decode("latin-1").rstrip("\r\n")):
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
        return headers

    def _chunks(self):
        while True:
            line = self.reader.readline()
            if not line:
                raise ConnectionError("body cut")
            size = int(line.split(b";")[0], 16)
            data = self.reader.read(size)
            self.reader.readline()
            if size == 0:
                return
            yield data
