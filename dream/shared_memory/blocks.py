"""Memory of any size that the ranks of a group all read and write."""

from __future__ import annotations

import json
import os
from ctypes import addressof, c_char, c_uint64, create_string_buffer
from mmap import PAGESIZE, mmap
from typing import final
from zlib import crc32

from dream._errors import Unsupported
from dream.shared_memory import groups, memory
from dream.shared_memory.group import Group
from dream.shared_memory.groups import Meet


def block(group: Group, size: int) -> mmap:
    """So many bytes, at first all zeros. Each of the ranks calls it; on all alike, `Unsupported`
    where there is no room or one does not reach it. The memory goes when the last of them has let
    go of it, however their processes end."""
    meet = _meeting(group)
    made, told = None, {"pid": os.getpid(), "fd": -1, "token": "", "error": ""}
    if group.place == 0:
        try:
            made = memory.reserve(size)
            told |= {"fd": made.fd, "token": made.token.hex()}
        except Unsupported as error:
            told["error"] = str(error)
    first = json.loads(meet("block", json.dumps(told).encode())[0])
    if first["error"]:
        raise Unsupported(first["error"])
    address = first["pid"], first["fd"], bytes.fromhex(first["token"])
    fd = groups.reach(meet, group.ranks, made, address)
    mapped, why = None, ""
    try:
        mapped = mmap(fd, size)
    except OSError as error:
        why = f"{size} bytes cannot be mapped on rank {group.ranks[group.place]}: {error.strerror}"
    os.close(fd)
    refusals = [word.decode() for word in meet("mapped", why.encode()) if word]
    if refusals or mapped is None:
        raise Unsupported(
            f"Shared memory for the ranks could not be allocated. Received: {refusals[0]}. Raise "
            "the limit on the memory of a process (ulimit -v)."
        )
    return mapped


@final
class Row:
    """A buffer of each rank of a group, one after another, which all of them read and write.

    begin: the address of the first one's. stride: bytes from one to the next. memory: of all, and
    offset: where in it this rank's own is. It lasts as long as what is made of `memory`.
    """

    def __init__(self, group: Group, size: int) -> None:
        """size: bytes of each. All ranks call it; raises as `block` does."""
        self.stride = -(-size // PAGESIZE) * PAGESIZE
        self.memory = block(group, self.stride * group.size)
        self.begin = addressof(c_char.from_buffer(self.memory))
        self.offset = self.stride * group.place

    @property
    def own(self) -> int:
        """The address of this rank's."""
        return self.begin + self.offset


def _meeting(group: Group) -> Meet:
    """Ranks that have a group tell one another by it."""

    def meet(step: str, said: bytes) -> list[bytes]:
        size, tag = group.size, crc32(step.encode())
        own, lengths = (c_uint64 * 1)(len(said)), (c_uint64 * size)()
        group.all_gather(addressof(own), addressof(lengths), [8] * size, "bytes", tag)
        text, whole = create_string_buffer(said), create_string_buffer(sum(lengths) + 1)
        group.all_gather(addressof(text), addressof(whole), list(lengths), "bytes", tag)
        words, begin = [], 0
        for length in lengths:
            words.append(whole.raw[begin : begin + length])
            begin += length
        return words

    return meet
