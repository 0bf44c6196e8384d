"""Runs a scripted engine: a program that takes a port, and prints its URL where that is 0."""

import contextlib
import subprocess
import sys


@contextlib.contextmanager
def scripted_engine(script, errors=None):
    """Starts an engine on a free port, gives its URL, and ends it. `errors` takes what it prints on stderr."""
    engine = subprocess.Popen([sys.executable, str(script), "0"], stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield engine.stdout.readline().strip()
    finally:
        engine.kill()
        engine.wait()
