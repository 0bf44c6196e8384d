"""Ports for programs that have to be told where to listen, before they do."""

import random
import socket


def free_port():
    """A port that nobody listens at, and that no connection is given meanwhile: systems hand out those from 32768 on."""
    while True:
        port = random.randrange(21_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
