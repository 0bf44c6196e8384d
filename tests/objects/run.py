"""Reads and writes traces and cassettes in an S3 that is started here (moto), and in servers that fail.

Usage: run.py BINARY, built with the feature object-storage, with Python that has moto[server,s3] and boto3."""

import functools
import gzip
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import boto3

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(sys.argv[1]).resolve()
TRACE = ROOT / "traces/builtin.jsonl.gz"
CASSETTE = ROOT / "examples/weather.yaml"
SECRET = "made-up-secret-of-the-test"


def expect(holds, text, shown=""):
    if not holds:
        sys.exit(f"objects: {text}\n{shown}")
    print(f"ok: {text}", flush=True)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until(holds, what):
    for _ in range(600):
        try:
            if result := holds():
                return result
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"objects: {what} did not happen within a minute")


class Store:
    """A server of S3 and what it holds."""

    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        server = pathlib.Path(sys.executable).parent / "moto_server"
        self.process = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: socket.create_connection(("127.0.0.1", self.port), 1), "a server of S3")
        self.client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key=SECRET)
        self.client.create_bucket(Bucket="vcr")

    def environment(self, **more):
        known = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HF_")) and "proxy" not in name.lower()}
        own = {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET}
        return known | own | more

    def put(self, key, content):
        self.client.put_object(Bucket="vcr", Key=key, Body=content)

    def keys(self, prefix=""):
        return [found["Key"] for found in self.client.list_objects_v2(Bucket="vcr", Prefix=prefix).get("Contents", [])]

    def body(self, key):
        return self.client.get_object(Bucket="vcr", Key=key)["Body"].read()

    def uploads(self):
        return self.client.list_multipart_uploads(Bucket="vcr").get("Uploads", [])

    def run(self, *arguments, **more):
        """Runs the program; its code, and what it printed and said."""
        command = [str(BINARY), *map(str, arguments)]
        ran = subprocess.run(command, env=self.environment(**more), capture_output=True, text=True, timeout=120)
        expect(SECRET not in ran.stdout + ran.stderr, f"no secret is shown: {' '.join(map(str, arguments))}", ran.stderr)
        return ran.returncode, ran.stdout, ran.stderr


def traces(store, folder):
    store.put("t/a.jsonl.gz", TRACE.read_bytes())
    local = store.run("inspect", "summary", TRACE, "--json")
    code, out, err = store.run("inspect", "summary", "s3://vcr/t/a.jsonl.gz", "--json")
    expect(code == 0, "a trace is read from S3", err)
    expect(json.loads(out)["records"] == json.loads(local[1])["records"], "with all of its records", out[:500])
    code, out, err = store.run("inspect", "check", "s3://vcr/t/a.jsonl.gz")
    expect(code == 0, "and checked", out + err)

    first, *records = gzip.decompress(TRACE.read_bytes()).splitlines(keepends=True)
    lines = first + b"".join(records) * (40_000_000 // TRACE.stat().st_size // 10)
    big = folder / "big.jsonl"
    big.write_bytes(lines)
    store.put("t/big.jsonl", lines)
    results = [store.run("inspect", "summary", "--json", path) for path in (big, "s3://vcr/t/big.jsonl")]
    read = [json.loads(out).get("records") if out.startswith("{") else err for _, out, err in results]
    expect(results[0][0] == results[1][0] and read[0] == read[1], "a larger one too, as it is read from a file", str(read)[:1000])

    code, out, err = store.run("inspect", "summary", "s3://vcr/t/none.jsonl")
    expect(code not in (0, 101) and "s3://vcr/t/none.jsonl" in err and "not found" in err, "one that is not there is named", err)
    code, out, err = store.run("inspect", "summary", "s3://none/a.jsonl")
    expect(code not in (0, 101) and "s3://none/a.jsonl" in err, "so is a bucket", err)
    code, out, err = store.run("inspect", "summary", f"s3://user:{SECRET}@vcr/a.jsonl")
    expect(code not in (0, 101) and "environment" in err, "credentials in a URL are refused", err)
    code, out, err = store.run("inspect", "summary", f"https://127.0.0.1:1/a.jsonl?sig={SECRET}")
    expect(code not in (0, 101) and "signatures" in err, "so are signatures", err)

    shutil.copy(TRACE, folder / "p1.jsonl.gz")
    store.put("dir/p1.jsonl.gz", TRACE.read_bytes())
    store.put("dir/p2.jsonl.gz", TRACE.read_bytes())
    store.put("dir/deeper/p3.jsonl.gz", TRACE.read_bytes())
    store.put("dir/notes.txt", b"x")
    code, out, err = store.run("inspect", "summary", "s3://vcr/dir/", "--json")
    twice = 2 * json.loads(local[1])["records"]
    expect(code == 0 and json.loads(out)["records"] == twice, "a folder stands for the traces in it", out[:500] + err)
    code, out, err = store.run("inspect", "summary", "s3://vcr/empty/")
    expect(code not in (0, 101) and "s3://vcr/empty/" in err, "an empty one is named", err)


def served(store, *arguments):
    """A server that plays; its process and URL."""
    port = free_port()
    process = subprocess.Popen([str(BINARY), "play", *arguments, "--port", str(port)], env=store.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"

    def ready():
        if process.poll() is not None:
            sys.exit(f"objects: play {arguments} ended: {process.stderr.read()}")
        return urllib.request.urlopen(url + "/v1/models", timeout=2).status == 200

    until(ready, "a server that plays")
    return process, url


def asked(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))


def playing(store):
    process, url = served(store, "--replay-tokens", "s3://vcr/t/a.jsonl.gz")
    model = json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["id"]
    answer = asked(url, "/v1/completions", {"model": model, "prompt": "hello", "max_tokens": 4})
    expect(answer["choices"], "play serves a trace from S3", answer)
    code, _, err = store.run("replay", "s3://vcr/t/a.jsonl.gz", "--target", url, "--limit", "2", "--concurrency", "2")
    expect(code == 0, "replay sends one from S3", err)
    process.terminate()
    expect(process.wait(30) == 0, "and ends well")


def cassettes(store):
    before = set(os.listdir()) | {"leaky.yaml"}
    store.put("c/weather.yaml", CASSETTE.read_bytes())
    code, out, err = store.run("cassette", "validate", "s3://vcr/c/weather.yaml")
    expect(code == 0, "a cassette without a sidecar is read from S3", out + err)
    store.put("c/weather.vcr/timing.jsonl", b"no json\n")
    code, out, err = store.run("cassette", "validate", "s3://vcr/c/weather.yaml")
    expect("s3://vcr/c/weather.vcr/timing.jsonl:1" in out + err, "its sidecar is read", out + err)
    store.client.delete_object(Bucket="vcr", Key="c/weather.vcr/timing.jsonl")
    leaky = CASSETTE.read_bytes() + b"# sk-proj-" + b"a1B2c3D4e5F6" * 4 + b"\n"
    pathlib.Path("leaky.yaml").write_bytes(leaky)
    store.put("leaky/leaky.yaml", leaky)
    codes = [store.run("cassette", "validate", path)[0] for path in ("leaky.yaml", "s3://vcr/leaky/leaky.yaml")]
    expect(codes == [3, 3], "secrets in it are found", codes)
    for written in (["fmt", "s3://vcr/c/weather.yaml"], ["merge", "leaky.yaml", "-o", "s3://vcr/c/m.yaml"], ["new", "s3://vcr/c/n.yaml"]):
        code, _, err = store.run("cassette", *written)
        expect(code == 2 and "written to files only" in err, f"cassette {written[0]} writes none", err)
    process, url = served(store, "--cassette", "s3://vcr/c/")
    process.terminate()
    expect(process.wait(30) == 0, "play serves a folder of cassettes from S3")
    code, out, err = store.run("tap", "--cassette", "s3://vcr/c/new.yaml", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0")
    expect(code not in (0, 101) and "s3://vcr/c/new.yaml" in err, "a cassette is not recorded there", err)
    expect(set(os.listdir()) == before, "and nothing is left here")


def merging(store, folder):
    """More than one part, and what may be there already."""
    big = folder / "big.jsonl"
    code, _, err = store.run("inspect", "merge", big, "--out", "s3://vcr/m/big.jsonl")
    expect(code == 0, "a trace is written to S3", err)
    etag = store.client.head_object(Bucket="vcr", Key="m/big.jsonl")["ETag"]
    expect(etag.strip('"').split("-")[1:] > ["1"], "in several parts", etag)
    read = [json.loads(store.run("inspect", "summary", "--json", path)[1])["records"] for path in (big, "s3://vcr/m/big.jsonl")]
    expect(read[0] == read[1] > 1_000, "with all records", read)
    code, _, err = store.run("inspect", "merge", TRACE, "--out", "s3://vcr/m/big.jsonl")
    expect(code not in (0, 101) and "exists already" in err, "one that is there stays", err)
    code, _, err = store.run("inspect", "merge", TRACE, "--out", "https://127.0.0.1:1/a.jsonl")
    expect(code not in (0, 101) and "only read" in err, "the web is only read", err)
    code, _, err = store.run("inspect", "merge", TRACE, "--out", "s3://none/a.jsonl")
    expect(code not in (0, 101) and "s3://none/a.jsonl" in err, "a bucket that is not there is named", err)
    expect(store.uploads() == [], "no upload is left over", store.uploads())


def recording(store, upstream):
    """A tap with rotation, and one whose store goes away."""

    def tapped(out, *more, breaks=None, **environment):
        port = free_port()
        command = [str(BINARY), "tap", "--upstream", upstream, "--listen", f"127.0.0.1:{port}", "--trace-out", out, *more]
        process = subprocess.Popen(command, env=store.environment(**environment), stderr=subprocess.PIPE, text=True)
        url = f"http://127.0.0.1:{port}"

        def ready():
            if process.poll() is not None:
                return True
            return urllib.request.urlopen(url + "/v1/models", timeout=2).status == 200

        until(ready, "a tap")
        if process.poll() is None:
            model = json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["id"]
            for at in range(7):
                asked(url, "/v1/completions", {"model": model, "prompt": f"hello {at}", "max_tokens": 4})
            if breaks:
                breaks()
            process.terminate()
        since = time.monotonic()
        err = process.communicate(timeout=120)[1]
        expect(SECRET not in err, "no secret is shown", err)
        return process.returncode, err, time.monotonic() - since

    code, err, _ = tapped("s3://vcr/r/day.jsonl.gz", "--rotate-records", "3")
    keys = store.keys("r/")
    expect(code == 0 and keys == ["r/day.1.jsonl.gz", "r/day.2.jsonl.gz", "r/day.jsonl.gz"], "a tap records into objects", f"{code} {keys} {err}")
    code, out, err = store.run("inspect", "summary", "s3://vcr/r/day.jsonl.gz", "--json")
    expect(code == 0 and json.loads(out)["records"] == 7, "the first stands for all of its parts", out[:300] + err)
    code, out, err = store.run("inspect", "check", "s3://vcr/r/")
    expect(code == 0, "and they are whole", out + err)
    code, err, _ = tapped("s3://vcr/r/day.jsonl.gz")
    expect(code not in (0, 101) and "exists already" in err, "one that is there stays", err)
    code, err, _ = tapped("s3://vcr/r/day.jsonl.gz", "--append")
    expect(code not in (0, 101) and "stays as it is" in err, "nothing is appended", err)
    code, err, _ = tapped("s3://vcr/r/day.jsonl.gz", "--next")
    expect(code == 0 and "r/day.3.jsonl.gz" in store.keys("r/"), "--next takes a free name", err)
    code, err, _ = tapped(f"s3://user:{SECRET}@vcr/a.jsonl")
    expect(code == 2 and "--trace-out s3://vcr/a.jsonl" in err, "credentials in a URL are refused by the flag's name", err)
    expect(store.uploads() == [], "no upload is left over", store.uploads())

    def stop():
        store.process.terminate()
        store.process.wait()

    code, err, took = tapped("s3://vcr/r/gone.jsonl.gz", breaks=stop)
    expect(code == 4 and "7 records could not be written" in err and took < 60, f"records that a store does not take are an error after {took:.1f} s", f"{code} {err}")


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Files, as the web and the Hub have them, to those with the token."""

    seen = []

    def do_GET(self):
        self.seen.append((self.path, self.headers.get("Authorization")))
        if self.path.startswith("/datasets/o/n/resolve/v1/"):
            self.path = self.path.removeprefix("/datasets/o/n/resolve/v1")
        super().do_GET()

    def log_message(self, *_):
        pass


def web(store):
    handler = functools.partial(Ranges, directory=str(TRACE.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{server.server_port}"
    code, _, err = store.run("inspect", "summary", f"{at}/{TRACE.name}")
    expect(code == 0, "a trace is read from the web", err)
    code, _, err = store.run("inspect", "summary", f"hf://datasets/o/n@v1/{TRACE.name}", HF_ENDPOINT=at, HF_TOKEN=SECRET)
    expect(code == 0, "and from the Hub", err)
    expect(Ranges.seen[0][1] is None and Ranges.seen[-1][1] == f"Bearer {SECRET}", "which alone gets the token", Ranges.seen)
    code, _, err = store.run("inspect", "summary", f"{at}/")
    expect(code not in (0, 101) and "name its files" in err, "a folder of it is refused", err)
    server.shutdown()


def dead(store):
    """Ports that nobody listens at, and that nobody answers at."""
    closed = f"http://127.0.0.1:{free_port()}"
    silent = socket.create_server(("127.0.0.1", 0), backlog=64)
    for endpoint in (closed, f"http://127.0.0.1:{silent.getsockname()[1]}"):
        since = time.monotonic()
        code, _, err = store.run("inspect", "summary", "s3://vcr/t/a.jsonl.gz", AWS_ENDPOINT_URL=endpoint)
        took = time.monotonic() - since
        expect(code not in (0, 101) and took < 30, f"a store that does not answer is an error after {took:.1f} s", err)
        print(f"    {err.strip()}")


def main():
    store = Store()
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            traces(store, pathlib.Path(folder))
            playing(store)
            cassettes(store)
            merging(store, pathlib.Path(folder))
            web(store)
            dead(store)
            process, url = served(store, "--replay-tokens", str(TRACE))
            recording(store, url)
            process.terminate()
    finally:
        store.process.terminate()
        os.chdir(ROOT)


main()
