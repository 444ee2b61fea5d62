"""Who listens where, read from /proc."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTEN = "0A"


@dataclass(frozen=True, order=True)
class Listener:
    """A TCP socket that a process listens on."""

    address: str
    port: int

    @property
    def plain_address(self) -> str:
        """IPv4's where it is one that an IPv6 socket goes by."""
        found = ip_address(self.address)
        mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
        return str(mapped or found)

    @property
    def on_loopback(self) -> bool:
        return ip_address(self.plain_address).is_loopback


def family(pid: int) -> set[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, new = set[int](), [pid]
    while new:
        found.update(new)
        new = [child for one in new for child in children.get(one, [])]
    return found


def listeners(pids: Iterable[int]) -> set[Listener]:
    """Of these processes, in the network namespace of each."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            inodes = {_inode(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
            for table in ("tcp", "tcp6"):
                found |= {one for inode, one in _table(pid, table) if inode in inodes}
    return found


def _inode(link: Path) -> str:
    """Of an open socket; of another file something that no table has."""
    with suppress(OSError):  # closed meanwhile
        return link.readlink().name.removeprefix("socket:[").removesuffix("]")
    return ""


def _table(pid: int, name: str) -> Iterable[tuple[str, Listener]]:
    for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTEN:
            address, _, port = fields[1].partition(":")
            yield fields[9], Listener(_readable(address), int(port, 16))


def _readable(text: str) -> str:
    """The kernel's words of four bytes, in this machine's order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    raw = b"".join(words)
    return str(IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw))
