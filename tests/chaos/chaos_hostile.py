"""Strangers at every port that a job listens on: who they are not, they cannot show."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from chaos_jobs import Job

_LISTENS = "0A"
_SECONDS = 20.0
_GIGABYTE = 1 << 30
_HALF_OPEN = 200
_BODIES, _BODY = 20, 15 << 20


def ports(job: Job) -> dict[tuple[str, int], int]:
    """(address, port) that the job's processes listen on by TCP, and the process."""
    inodes = {inode: pid for pid in job.processes for inode in _sockets(pid)}
    found = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found[_readable(address, family), int(port, 16)] = inodes[fields[9]]
    return found


def _sockets(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = os.readlink(entry)  # noqa: PTH115 - it leads to no path
                if target.startswith("socket:["):
                    yield target[8:-1]


def _readable(address: str, family: socket.AddressFamily) -> str:
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def garbage(port: int, _: Path) -> None:
    _say(port, os.urandom(1 << 16))


def lengths_that_lie(port: int, _: Path) -> None:
    """For anything that reads a number of bytes and then so many."""
    for size in ("<I", ">I", "<Q", ">Q"):
        most = (1 << 8 * struct.calcsize(size)) - 1
        _say(port, struct.pack(size, most) * 64)
    _say(port, b"PUT /job-1/x/y HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 4096)
    _say(port, b"PUT /job-1/x/y HTTP/1.1\r\nContent-Length: 16777216\r\n\r\n" + b"x" * 4096)


def pickles(port: int, witness: Path) -> None:
    """witness: a file that is there if one was read."""
    data = pickle.dumps(_Touch(witness))
    for head in (b"", b"\0" * 37, struct.pack("<Q", len(data)), struct.pack("<B3xI6q2dQ", 1,
                 len(data), *[0] * 6, 0.0, 0.0, 0)):  # fmt: skip
        _say(port, head + data)


class _Touch:
    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self._witness),)


def a_gigabyte(port: int, _: Path) -> None:
    """For as long as it is taken, and no longer than some seconds."""
    block = b"\0" * (1 << 20)
    with _connected(port) as connection, suppress(OSError):
        connection.settimeout(2.0)
        for _ in range(_GIGABYTE // len(block)):
            connection.sendall(block)


@contextmanager
def half_open(port: int) -> Iterator[None]:
    """So many connections that say nothing, or half a word, or send most of a value whose end they
    keep."""
    head = f"PUT /job-1/x/y HTTP/1.1\r\nContent-Length: {_BODY + 1}\r\n\r\n".encode()
    body = head + bytes(_BODY)
    with ExitStack() as held:
        for count in range(_HALF_OPEN + _BODIES):
            with suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), _SECONDS)
                held.callback(connection.close)
                connection.settimeout(0.2)
                connection.sendall(body if count < _BODIES else b"PUT /"[: count % 6])
        yield


ATTACKS = (garbage, lengths_that_lie, pickles, a_gigabyte)


def memory(pid: int) -> int:
    """Bytes of a process that are its own: what it has asked for, less what it maps."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no memory of {pid}")


def _say(port: int, data: bytes) -> None:
    with _connected(port) as connection, suppress(OSError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.3)
        while connection.recv(1 << 16):
            pass


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    try:
        connection = socket.create_connection(("127.0.0.1", port), _SECONDS)
    except OSError:
        yield socket.socket()
        return
    with connection:
        yield connection
