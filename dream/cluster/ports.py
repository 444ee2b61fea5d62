"""Addresses and ports: which this job may listen on, ports that stay ours until whoever they are
meant for listens on them, and our own listeners."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import sys
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

from dream._errors import ConfigurationError
from dream._topology import Endpoint
from dream.cluster import settings
from dream.cluster.settings import LARGEST_PORT

_LOOPBACKS = ("127.0.0.1", "::1")


def _loopback() -> str:
    """Return the address that a host has for itself: IPv4's, unless it has IPv6 alone."""
    for host, family in zip(_LOOPBACKS, (socket.AF_INET, socket.AF_INET6), strict=True):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            return host
    return _LOOPBACKS[0]


LOOPBACK = _loopback()
LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
_LOOPBACK_NAMES = ("localhost", "::1", "")
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK_NAMES or host.startswith("127.")


_HANDED_OUT = 1 << 15
"""From here on systems give ports to whoever asks for any (Linux: 32768 to 60999)."""
_SECOND_PORTS = range(10500, 32500)


def next_ports(taken: Collection[int], count: int) -> tuple[int, ...]:
    """Return the ports of further services, the same for all who know those taken: the ones beside.
    A launcher that had the system choose its port has neighbours that the system gives to anybody
    at any moment, so the next of those lie below them; where DREAM_PORT_RANGE is set, ports are the
    user's own."""
    top = max(taken)
    if top >= _HANDED_OUT and port_range() is None:
        first = _SECOND_PORTS[(top - _HANDED_OUT) % len(_SECOND_PORTS)]
        free = (number for number in range(first, _HANDED_OUT) if number not in taken)
        return tuple(islice(free, count))
    if top + count > LARGEST_PORT:
        return tuple(min(taken) - 1 - number for number in range(count))
    return tuple(top + 1 + number for number in range(count))


def next_port(number: int) -> int:
    """Return the port of a second service."""
    return next_ports((number,), 1)[0]


_OWN_PORTS = (15000, 29999)
"""Below those that systems give to whoever asks for any."""


def port_of(job: Iterable[str]) -> int:
    """Return the port that a job's name stands for, the same on each of its ranks: one of
    DREAM_PORT_RANGE, or below the ports that systems hand out. Jobs may meet there by chance, one
    in some thousands, and are told."""
    within = port_range()
    low, high = (within.low, within.high) if within else _OWN_PORTS
    places = max(1, (high - low + 1) // 2)  # a second service takes the one above
    return low + 2 * (zlib.crc32("\n".join(job).encode()) % places)


def endpoint(text: str, what: str) -> Endpoint:
    """Parse `host:port`; `what` names where it was written."""
    host, colon, number = text.rpartition(":")
    if not colon or not host or not number.isdigit() or not 0 < int(number) <= LARGEST_PORT:
        raise ConfigurationError(
            f"{what} contains no host:port. Received: {text!r}. Write it like 10.0.0.1:2222."
        )
    return Endpoint(host.strip("[]"), int(number))


@dataclass(frozen=True, slots=True)
class PortRange:
    """low to high, both among them."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Parse LOW-HIGH. source: who wrote it, for the message."""
        ends = text.split("-")
        fit = len(ends) == 2 and all(end.isdecimal() for end in ends)
        if not fit or not 0 < int(ends[0]) <= int(ends[1]) <= LARGEST_PORT:
            raise ConfigurationError(
                f"{source} is not a valid port range. Received: {text!r}. Write LOW-HIGH, both "
                f"from 1 to {LARGEST_PORT}, like 40000-40099."
            )
        return cls(int(ends[0]), int(ends[1]))

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"

    @property
    def ports(self) -> range:
        return range(self.low, self.high + 1)


def port_range(environ: Mapping[str, str] = os.environ) -> PortRange | None:
    """Return DREAM_PORT_RANGE; None where any free port will do."""
    text = environ.get(settings.PORT_RANGE)
    return PortRange.parse(text, settings.PORT_RANGE) if text else None


def ports_in_words() -> str:
    """Say which ports are listened on."""
    within = port_range()
    return f"ports {within}" if within else "free ports"


def used_up(within: PortRange | None = None) -> ConfigurationError:
    """Make the error of a listener that finds no port. within: else DREAM_PORT_RANGE."""
    return ConfigurationError(
        f"No port is free to listen on. Received: {settings.PORT_RANGE}={within or port_range()}. "
        "Set a wider range: a rank needs a handful, plus one per group of ranks. A port is free "
        "again a minute after the job that used it ends."
    )


class Reservation:
    """A port of every local interface, bound and not listened on.

    Another process may listen on it meanwhile if it asks for address reuse, as torch's and
    TensorFlow's servers do; the system gives it to nobody else. So nothing can slip in between
    choosing a port and using it, however long a framework takes to import.
    """

    def __init__(self, within: PortRange | None = None) -> None:
        self._socket = _everywhere(within)
        # set after binding: a port that another job has reserved this way is not drawn again
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def reserve(within: PortRange | None = None) -> Reservation:
    """Reserve a free port of this host. within: the ports to choose from, else any."""
    return Reservation(within)


def listener(host: str, within: PortRange | None = None, *, backlog: int = 128) -> socket.socket:
    """Make a socket that listens on this address of the host alone, on a free port."""
    made = _bound(_family(host), host, within)
    made.listen(backlog)
    return made


def listener_at(host: str, port: int) -> socket.socket:
    """Do the same on a port that is reserved or given; host "": on every IPv4 address. OSError
    where somebody listens there."""
    family = _family(host) if host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def local_address(host: str) -> str | None:
    """Return the address of this host that the name stands for; None where it is no address of this
    host's, as in front of a proxy."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(address)
                return str(address[0])
    return None


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]


def _everywhere(within: PortRange | None) -> socket.socket:
    """Bound on IPv6 and IPv4 alike, since servers may take either; on IPv4 where that is all."""
    try:
        return _bound(socket.AF_INET6, "::", within)
    except OSError:
        return _bound(socket.AF_INET, "", within)


def _bound(family: socket.AddressFamily, host: str, within: PortRange | None) -> socket.socket:
    """On a free port. Without address reuse, which would give one that is reserved."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if host == "::":
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if _bind_one_of(made, host, within):
            return made
    except OSError:
        made.close()
        raise
    made.close()
    raise used_up(within)


def _bind_one_of(made: socket.socket, host: str, within: PortRange | None) -> bool:
    for port in within.ports if within else (0,):
        try:
            made.bind((host, port))
        except OSError as error:
            if within and error.errno == errno.EADDRINUSE:
                continue
            raise
        return True
    return False


def own_address(toward: str) -> str:
    """Return the address of this host that `toward` would see. Nothing is sent."""
    family = socket.getaddrinfo(toward, 9, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((toward, 9))
        address: str = probe.getsockname()[0]
    return address


def interface_toward(host: str) -> str | None:
    """Return the network interface that `host` is reached by; None where the system does not tell.

    gloo would go by the host's own name otherwise, which many systems resolve to loopback.
    """
    if is_loopback(host):
        return LOOPBACK_INTERFACE
    address = own_address(host)
    if ":" in address:
        return _interface_of_ipv6(address)
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if _address(name) == address), None)


def _interface_of_ipv6(address: str) -> str | None:
    """Return the interface that has an IPv6 address, by Linux's table: address, index, length of
    its prefix, scope, flags, name."""
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    with contextlib.suppress(OSError):
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            words = line.split()
            if words[0] == wanted:
                return words[-1]
    return None


def _address(interface: str) -> str | None:
    """Return an interface's IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer: bytes = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
