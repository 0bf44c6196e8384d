"""Sends many requests at once and times every read: a process of its own, one epoll loop over raw sockets, no parsing.

stdin: {"host", "port", "requests": [{"head", "body"}]} with latin-1 strings; stdout: per request
{"start", "reads": [[time, bytes read so far]], "data"}, times in seconds of one monotonic clock, data in base64.
"""

import base64
import gc
import json
import selectors
import socket
import sys
from time import perf_counter


def run(host: str, port: int, payloads: list[bytes]) -> list[dict]:
    poll, streams = selectors.EpollSelector(), []
    for payload in payloads:
        conn = socket.create_connection((host, port))
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        streams.append({"conn": conn, "payload": payload, "reads": [], "data": bytearray()})
        poll.register(conn, selectors.EVENT_READ, streams[-1])
    gc.disable()
    for stream in streams:
        stream["start"] = perf_counter()
        stream["conn"].sendall(stream["payload"])
    running = len(streams)
    while running:
        ready = poll.select(timeout=120)
        if not ready:
            raise TimeoutError(f"{running} streams are silent")
        for key, _ in ready:
            stream = key.data
            try:
                read = key.fileobj.recv(1 << 18)
            except ConnectionError:
                read = b""
            now = perf_counter()
            stream["data"] += read
            stream["reads"].append((now, len(stream["data"])))
            if not read or stream["data"].endswith(b"\r\n0\r\n\r\n"):
                poll.unregister(key.fileobj)
                key.fileobj.close()
                running -= 1
    return [{"start": s["start"], "reads": s["reads"], "data": base64.b64encode(s["data"]).decode()} for s in streams]


if __name__ == "__main__":
    job = json.load(sys.stdin)
    wanted = [(one["head"] + one["body"]).encode("latin-1") for one in job["requests"]]
    json.dump(run(job["host"], job["port"], wanted), sys.stdout)
