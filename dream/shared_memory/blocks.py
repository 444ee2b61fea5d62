"""Memory of any size that the ranks of a host all read and write."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from mmap import mmap

from dream._errors import Unsupported
from dream.shared_memory import groups, memory
from dream.shared_memory.groups import Meet


def block(meet: Meet, ranks: Sequence[int], mine: int, size: int) -> mmap:
    """So many bytes, at first all zeros. Each of the ranks calls it; on all alike, `Unsupported`
    where there is no room or one does not reach it. mine: this rank's place among them. The memory
    goes when the last of them has let go of it, however their processes end."""
    made, told = None, {"pid": os.getpid(), "fd": -1, "token": "", "error": ""}
    if mine == 0:
        try:
            made = memory.reserve(size)
            told |= {"fd": made.fd, "token": made.token.hex()}
        except Unsupported as error:
            told["error"] = str(error)
    first = json.loads(meet("block", json.dumps(told).encode())[0])
    if first["error"]:
        raise Unsupported(first["error"])
    address = first["pid"], first["fd"], bytes.fromhex(first["token"])
    fd = groups.reach(meet, ranks, made, address)
    try:
        return mmap(fd, size)
    finally:
        os.close(fd)
