"""Ports that stay ours until whoever they are meant for listens on them."""

from __future__ import annotations

import contextlib
import socket


class Reservation:
    """A port of every local interface, bound and not listened on.

    Another process may listen on it meanwhile if it asks for address reuse, as torch's and
    TensorFlow's servers do; the system gives it to nobody else. So nothing can slip in between
    choosing a port and using it, however long a framework takes to import.
    """

    def __init__(self) -> None:
        self._socket = _bound()
        # set after binding: a port that another job has reserved this way is not drawn again
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def _bound() -> socket.socket:
    """Bound on IPv6 and IPv4 alike, since servers may take either; on IPv4 where that is all."""
    with contextlib.suppress(OSError):
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        try:
            both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            both.bind(("::", 0))
        except OSError:
            both.close()
            raise
        return both
    single = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    single.bind(("", 0))
    return single


def reserve() -> Reservation:
    """A free port of this host."""
    return Reservation()


def own_address(toward: str) -> str:
    """The address of this host that `toward` would see. Nothing is sent."""
    family = socket.getaddrinfo(toward, 9, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((toward, 9))
        address: str = probe.getsockname()[0]
    return address
