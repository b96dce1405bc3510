"""Ports of this machine. Standard library alone."""

import socket

DEFAULT_PORT = 29500


def is_port_in_use(port: int | None = None) -> bool:
    """Whether something on this machine listens on the port (29500 if none is given)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", DEFAULT_PORT if port is None else port)) == 0
