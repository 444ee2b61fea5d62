"""Ports that stay ours until whoever they are meant for listens on them."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys

from dream.cluster._read import is_loopback

LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


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


def interface_toward(host: str) -> str | None:
    """The network interface that `host` is reached by; None where the system does not tell.

    gloo would go by the host's own name otherwise, which many systems resolve to loopback.
    """
    if is_loopback(host):
        return LOOPBACK_INTERFACE
    address = own_address(host)
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if _address(name) == address), None)


def _address(interface: str) -> str | None:
    """An interface's IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer: bytes = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
