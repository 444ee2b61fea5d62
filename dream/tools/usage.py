"""What this process has used: memory, and bytes over its sockets."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

_BYTES_SENT = 200
"""Where `tcpi_bytes_sent`, a u64, lies in the kernel's `struct tcp_info` (Linux 4.19 and later)."""
_DESCRIPTORS = Path("/proc/self/fd")


def bytes_sent() -> int | None:
    """Over all TCP sockets that are open now, as Linux counts them for each: those of every
    transport, whatever library holds it. What goes through shared memory is in no socket. None
    where the system does not count."""
    if not sys.platform.startswith("linux") or not _DESCRIPTORS.is_dir():
        return None
    found = [_sent(int(entry)) for entry in os.listdir(_DESCRIPTORS)]  # noqa: PTH208
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def peak_bytes() -> int:
    """The largest resident size this process has had."""
    from resource import RUSAGE_SELF, getrusage

    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """The resident size of this process now; where the system does not tell, its largest."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def _sent(descriptor: int) -> int | None:
    """0 for what is no TCP socket, or closed meanwhile."""
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):  # noqa: PTH115
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return 0
            facts = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0
    if len(facts) < _BYTES_SENT + 8:
        return None
    return int(struct.unpack_from("Q", facts, _BYTES_SENT)[0])
