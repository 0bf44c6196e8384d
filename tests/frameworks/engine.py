"""An engine for the examples of test frameworks: calls the tool that it is offered once, and says what it was told last.

Usage: engine.py PORT. With port 0 it listens on a free one and prints its URL.
"""

import itertools
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NUMBERS = itertools.count(1)


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send_bytes(self, status, kind, data):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send_bytes(404, "application/json", b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number, last = next(NUMBERS), body["messages"][-1]
        about = {"id": f"chatcmpl-{number}", "created": number, "model": body["model"]}
        text = f"It is {last['content']}."
        message, finish = {"role": "assistant", "content": text}, "stop"
        if body.get("tools") and last["role"] == "user":
            city = last["content"].rsplit(" ", 1)[-1].strip("?")
            function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"city": city})}
            call = {"id": f"chatcmpl-tool-{number:08x}", "type": "function", "function": function}
            message, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            whole = {**about, "object": "chat.completion", "choices": [choice]}
            return self.send_bytes(200, "application/json", json.dumps(whole).encode())
        deltas = [({"role": "assistant", "content": ""}, None), *(({"content": word}, None) for word in text.split(" ", 1))]
        deltas[-1][0]["content"] = " " + deltas[-1][0]["content"]
        events = []
        for delta, finish in [*deltas, ({}, "stop")]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            events.append(json.dumps({**about, "object": "chat.completion.chunk", "choices": [choice]}))
        stream = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
        self.send_bytes(200, "text/event-stream", stream.encode())


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Engine)
if sys.argv[1] == "0":
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
