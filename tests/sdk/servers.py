"""Starts and stops the servers under test."""

import signal
import subprocess
import time
import urllib.request

from ports import free_port

# On a machine that checks other things at the same time.
START_LIMIT_S = 60
STOP_LIMIT_S = 60


class Server:
    """One `vllm-vcr` process that listens on `port`; a context manager that ends it with SIGTERM."""

    def __init__(self, binary, arguments, port, log=None, scheme="http"):
        self.command = [str(binary), *arguments]
        self.log = log
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.process = None
        self.exit_code = None

    def __enter__(self):
        errors = self.log.open("wb") if self.log else None
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stderr=errors)
        if errors:
            errors.close()
        deadline = time.monotonic() + START_LIMIT_S
        while not self._is_healthy():
            if self.process.poll() is not None:
                raise SystemExit(f"{self.command} ended at once with {self.process.returncode}")
            if time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"{self.command} is not healthy after {START_LIMIT_S} s")
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.exit_code = self.process.wait()

    def _is_healthy(self):
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=2).status == 200
        except OSError:
            return False


def play(binary, *arguments, log=None):
    """`log` takes what the server says, where it is given."""
    port = free_port()
    return Server(binary, ["play", "--port", str(port), *arguments], port, log)


def secure_play(binary, authority, directory, *arguments):
    """`play` behind TLS, with a certificate of a `trustme` authority that is put into `directory`."""
    certificate, key = directory / "server.pem", directory / "server.key"
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    port = free_port()
    files = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    return Server(binary, ["play", "--port", str(port), *files, *arguments], port, scheme="https")


def tap(binary, upstream, trace):
    port = free_port()
    arguments = ["tap", "--upstream", upstream, "--listen", f"127.0.0.1:{port}", "--trace-out", str(trace)]
    return Server(binary, [*arguments, "--record-tokens"], port)
