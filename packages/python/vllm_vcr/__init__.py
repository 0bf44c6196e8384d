"""The vllm-vcr program, started and asked from Python.

``play`` serves cassettes, ``tap`` records a real server, ``connect`` takes a server that runs already. Each is a context manager
whose value is the :class:`Server`; the program decides what is matched, recorded and refused, and this package passes it on.
"""

from vllm_vcr._binary import BinaryNotFound, binary
from vllm_vcr._server import Server, Session, VcrError, connect, play, tap

__all__ = ["BinaryNotFound", "Server", "Session", "VcrError", "binary", "connect", "play", "tap"]
