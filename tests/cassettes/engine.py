"""A scripted engine: an agent's weather tool, streamed or not; messages, responses, embeddings."""
import json, itertools, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import families
count = itertools.count()
asked = {}
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def send(self, status, body, ctype="application/json"):
        data = json.dumps(body).encode()
        self.send_response(status); self.send_header("content-type", ctype); self.send_header("content-length", str(len(data))); self.end_headers(); self.wfile.write(data)
    def do_GET(self):
        if self.path == "/version": return self.send(200, {"version": "0.32.0"})
        if self.path == "/v1/models": return self.send(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})
        self.send(404, {"detail": "Not Found"})
    def sse(self, events, named=False):
        try: self.write_events(events, named)
        except (BrokenPipeError, ConnectionResetError): self.close_connection = True
    def write_events(self, events, named):
        self.send_response(200); self.send_header("content-type", "text/event-stream; charset=utf-8"); self.send_header("transfer-encoding", "chunked"); self.end_headers()
        for e in events:
            data = e if isinstance(e, str) else json.dumps(e)
            line = (f"event: {e['type']}\n" if named else "") + f"data: {data}\n\n"
            b = line.encode(); self.wfile.write(f"{len(b):x}\r\n".encode() + b + b"\r\n"); self.wfile.flush(); time.sleep(0.005)
        self.wfile.write(b"0\r\n\r\n")
    def do_POST(self):
        n = next(count)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/embeddings":
            return self.send(200, {"id": f"embd-{n}", "created": n, "object": "list", "model": "m", "data": [{"index": 0, "object": "embedding", "embedding": [0.5, -1.25e-7]}], "usage": {"prompt_tokens": 1, "total_tokens": 1}})
        if self.path in ("/v1/messages", "/v1/responses"):
            whole, events = (families.message if self.path == "/v1/messages" else families.response)(body, n)
            return self.sse(events, named=True) if body.get("stream") else self.send(200, whole)
        if "messages" not in body: return self.send(404, {"detail": "Not Found"})
        msgs = body["messages"]
        last = msgs[-1]
        head = {"id": f"chatcmpl-{n}", "created": 1000 + n, "model": "m"}
        if last["content"] == "fail": return self.send(429, {"error": {"message": "slow down", "type": "rate", "param": None, "code": 429}})
        if str(last["content"]).startswith("flaky"):
            asked[last["content"]] = asked.get(last["content"], 0) + 1
            if asked[last["content"]] % 3: return self.send(500, {"error": {"message": "busy", "type": "InternalServerError", "param": None, "code": 500}})
        if last["content"] == "bad": return self.send(400, {"error": {"message": "bad request", "type": "BadRequestError", "param": None, "code": 400}})
        city = families.city(families.text_of(last["content"]))
        if body.get("tools") and last["role"] == "user" and city:
            call = {"id": f"chatcmpl-tool-{n:04x}", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
            message = {"role": "assistant", "content": None, "refusal": None, "annotations": None, "reasoning": "Use the tool.", "tool_calls": [call]}
            deltas = [{"role": "assistant", "content": ""}, {"reasoning": "Use the "}, {"reasoning": "tool."}, {"tool_calls": [{"index": 0, "id": call["id"], "type": "function", "function": {"name": "weather"}}]}, {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}, {"tool_calls": [{"index": 0, "function": {"arguments": f'"{city}"}}'}}]}]
            finish = "tool_calls"
        else:
            text = f"It is {families.text_of(last['content'])}.\nTake an umbrella."
            message = {"role": "assistant", "content": text, "tool_calls": []}
            deltas = [{"role": "assistant", "content": ""}, *[{"content": w} for w in text.replace(" ", " \0").split("\0")]]
            finish = "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not body.get("stream"):
            return self.send(200, {**head, "object": "chat.completion", "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}], "usage": usage})
        ch = lambda d, f=None: {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": d, "logprobs": None, "finish_reason": f}]}
        events = [ch(d) for d in deltas] + [ch({}, finish)]
        if (body.get("stream_options") or {}).get("include_usage"): events.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.sse(events + ["[DONE]"])
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
if sys.argv[1] == "0": print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
