#!/usr/bin/env python3
"""@TITLE@

A test without dependencies: it listens where the gateway has its upstream, sends the writes below to each request by its marker,
asks the gateway as the client did, and prints the first difference. Exit code 1 where there is one.

    python3 @NAME@ [GATEWAY_HOST:PORT [UPSTREAM_HOST:PORT]]
"""
import json, socket, ssl, sys, threading, time

GATEWAY = sys.argv[1] if len(sys.argv) > 1 else @GATEWAY@
TLS = @TLS@  # of the gateway, whose certificate is not checked
PREFIX = @PREFIX@
UPSTREAM = sys.argv[2] if len(sys.argv) > 2 else @UPSTREAM@
KEY = ""  # sent as `Authorization: Bearer KEY`
CHECK = @CHECK@  # stream: the events are the same; content: their texts are; error: no proper end
IGNORED = @IGNORED@
# Of each stream: marker, path, request, status, writes (seconds before each, bytes), how it ends, data of the true events.
STREAMS = [
@STREAMS@
]


def address(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def read_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return None, None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lower = head.lower()
    if b"\r\ncontent-length:" in lower:
        length = int(lower.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        while len(body) < length:
            part = connection.recv(65536)
            if not part:
                return None, None
            body += part
    elif b"\r\ntransfer-encoding: chunked" in lower:
        while not body.endswith(b"0\r\n\r\n"):
            part = connection.recv(65536)
            if not part:
                return None, None
            body += part
    return head, body


def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        while True:
            head, body = read_request(connection)
            if head is None:
                return
            stream = next((s for s in STREAMS if s["marker"].encode() in body), None)
            if stream is None:  # health checks and lists of models
                page = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(page) + page)
                continue
            connection.sendall(b"HTTP/1.1 %d OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n" % (stream["status"], stream["type"]))
            for pause, write in stream["writes"]:
                time.sleep(pause)
                connection.sendall(b"%x\r\n" % len(write) + write + b"\r\n")
            if stream["end"] == "proper":
                connection.sendall(b"0\r\n\r\n")
            elif stream["end"] == "stall":
                time.sleep(60)
                return
            else:
                return


def listen():
    listener = socket.socket(socket.AF_INET6 if ":" in address(UPSTREAM)[0] else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address(UPSTREAM))
    listener.listen(1024)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def connect():
    plain = socket.create_connection(address(GATEWAY), timeout=10)
    return ssl._create_unverified_context().wrap_socket(plain, server_hostname=address(GATEWAY)[0]) if TLS else plain


def ask(stream):
    """The bytes that come out of the gateway, without the chunked encoding, and whether they are complete."""
    with connect() as connection:
        head = "POST %s%s HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
        head %= (PREFIX, stream["path"], GATEWAY, len(stream["request"]))
        if KEY:
            head += "authorization: Bearer %s\r\n" % KEY
        connection.sendall(head.encode() + b"\r\n" + stream["request"])
        data = b""
        try:
            while part := connection.recv(65536):
                data += part
        except OSError as error:
            print("the connection of the client failed:", error)
    head, _, rest = data.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return head, rest, True
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        size = int(size.split(b";")[0] or b"0", 16)
        if size == 0:
            return head, body, True
        body, rest = body + rest[:size], rest[size + 2:]
    return head, body, False


def events(body):
    text = body.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    found = []
    for block in text.split("\n\n"):
        lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if lines:
            found.append("\n".join(lines))
    return found


def without_ignored(value):
    if isinstance(value, dict):
        return {name: without_ignored(item) for name, item in value.items() if name not in IGNORED}
    return [without_ignored(item) for item in value] if isinstance(value, list) else value


def read(data):
    try:
        return without_ignored(json.loads(data))
    except ValueError:
        return data


def fields(events, name):
    """The values of a field of all choices."""
    choices = [choice for event in events if isinstance(event, dict) for choice in event.get("choices") or []]
    return [choice[name] for choice in choices if choice.get(name)]


def texts(event):
    """What an event adds, whatever the API."""
    if not isinstance(event, dict):
        return ""
    if "choices" in event:
        return "".join(choice.get("text") or leaves(choice.get("delta")) for choice in event["choices"])
    return leaves(event.get("delta")) if str(event.get("type")).endswith("delta") else ""


def leaves(delta):
    names = ("content", "text", "reasoning", "reasoning_content", "thinking", "arguments", "partial_json")
    if isinstance(delta, dict):
        fields = [(name, item) for name, item in delta.items() if item]
        reasoning = [name for name, _ in fields if name.startswith("reasoning")][1:]  # engines may have both names
        return "".join(item if name in names and isinstance(item, str) else leaves(item) if isinstance(item, (dict, list)) else "" for name, item in fields if name not in reasoning)
    return "".join(map(leaves, delta)) if isinstance(delta, list) else delta if isinstance(delta, str) else ""


def usage(events):
    """Tokens in and out, as the last events that have them say."""
    tokens_in = tokens_out = None
    for event in events:
        for holder in (event, event.get("response"), event.get("message")) if isinstance(event, dict) else ():
            counts = holder.get("usage") if isinstance(holder, dict) else None
            if counts:
                tokens_in = counts.get("prompt_tokens", counts.get("input_tokens", tokens_in))
                tokens_in = tokens_in + (counts.get("cache_read_input_tokens") or 0) if tokens_in is not None else None
                tokens_out = counts.get("completion_tokens", counts.get("output_tokens", tokens_out))
    return tokens_in, tokens_out


def content(events):
    """What events add up to."""
    tokens = [one.get("content") or one.get("tokens") for one in fields(events, "logprobs")]
    return {"text": "".join(map(texts, events)), "usage": usage(events), "reasons": fields(events, "finish_reason"), "logprobs": sum(tokens, [])}


def difference(stream, head, body, is_complete):
    came, wanted = [read(data) for data in events(body)], [read(data) for data in stream["events"]]
    if CHECK == "error":
        is_error = any(isinstance(event, dict) and (event.get("error") or event.get("type") == "error") for event in came)
        ends = [data for data in events(body) if data == "[DONE]" or '"finish_reason":"' in data.replace(" ", "") or "message_stop" in data]
        is_stop = b" 200 " in head.split(b"\r\n")[0] and is_complete and not is_error and ends
        return "the failed stream ends properly: %s" % ends[-1] if is_stop else None
    if CHECK == "content":
        got, true = content(came), content(wanted)
        shared = ("text", "usage") if bool(got["reasons"]) != bool(true["reasons"]) else tuple(got)
        other = [name for name in shared if got[name] != true[name]]
        return "%s is %s, not %s" % (other[0], json.dumps(got[other[0]], ensure_ascii=False), json.dumps(true[other[0]], ensure_ascii=False)) if other else None
    for number in range(max(len(came), len(wanted))):
        got = came[number] if number < len(came) else "nothing"
        true = wanted[number] if number < len(wanted) else "nothing"
        if got != true:
            return "event %d is %s, not %s" % (number + 1, json.dumps(got, ensure_ascii=False), json.dumps(true, ensure_ascii=False))
    return None if is_complete else "the stream broke after its last event"


threading.Thread(target=listen, daemon=True).start()
time.sleep(0.2)
results = [None] * len(STREAMS)


def run(number):
    results[number] = difference(STREAMS[number], *ask(STREAMS[number]))


threads = [threading.Thread(target=run, args=(number,)) for number in range(len(STREAMS))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
for stream, result in zip(STREAMS, results):
    print("%s: %s" % (stream["marker"], result or "as it was sent"))
sys.exit(1 if any(results) else 0)
