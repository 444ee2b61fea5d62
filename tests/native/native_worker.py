"""A rank that does what the test asks for: PORT KEY, on the command line."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from ctypes import memmove
from multiprocessing.connection import Client, Connection
from typing import Any

import numpy as np
from native_calls import (
    Asked,
    buffer_of,
    given,
    narrowed,
    numpy_dtype,
    same_halves,
    widened,
)

from dream import cluster
from dream.shared_memory import CARRIES, Group, Row, connect


class Rank:
    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self.place = cluster.detect()
        self.group: Group | None = None
        self._row: Row | None = None
        self._cores = os.sched_getaffinity(0)

    def limit(self, most: int) -> None:
        """No file of this process, in memory or not, grows beyond it."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def connect(self, name: str) -> tuple[int, int]:
        everybody = range(self.place.world_size)
        self.group = connect(self.place, tuple(everybody), name)
        return self.group.place, self.group.size

    def lay_row(self) -> None:
        self._row = Row(self._group, 8 * 200_000)

    @property
    def _group(self) -> Group:
        assert self.group is not None
        return self.group

    def call(self, asked: Asked) -> np.ndarray:
        group, rank = self._group, self.place.rank
        source = given(asked, rank, group.size)
        target = buffer_of(asked, rank, group.size)
        if asked.in_place:
            target[: source.size] = source
            source = target
        act = getattr(self, f"_{asked.kind}")
        act(group, asked, source.ctypes.data, target.ctypes.data)
        return target

    @staticmethod
    def _all_reduce(group: Group, asked: Asked, source: int, target: int) -> None:
        group.all_reduce(source, target, asked.count, asked.dtype, asked.op)

    @staticmethod
    def _reduce_scatter(group: Group, asked: Asked, source: int, target: int) -> None:
        group.reduce_scatter(source, target, asked.count, asked.dtype, asked.op)

    @staticmethod
    def _broadcast(group: Group, asked: Asked, source: int, target: int) -> None:
        del source  # lies in target
        group.broadcast(target, asked.count, asked.dtype, asked.root)

    @staticmethod
    def _all_gather(group: Group, asked: Asked, source: int, target: int) -> None:
        group.all_gather(source, target, asked.counts(group.size), asked.dtype)

    @staticmethod
    def _all_to_all(group: Group, asked: Asked, source: int, target: int) -> None:
        sends = [asked.flow(group.place, other) for other in range(group.size)]
        receives = [asked.flow(other, group.place) for other in range(group.size)]
        group.all_to_all(source, target, sends, receives, asked.dtype)

    def _reduce_there(self, group: Group, asked: Asked, source: int, target: int) -> None:
        self._there(asked, source, target, everywhere=True)

    def _scatter_there(self, group: Group, asked: Asked, source: int, target: int) -> None:
        self._there(asked, source, target, everywhere=False)

    def _there(self, asked: Asked, source: int, target: int, *, everywhere: bool) -> None:
        if self._row is None:
            self.lay_row()
        assert self._row is not None
        row, size = self._row, asked.count * numpy_dtype(asked.dtype).itemsize
        memmove(row.own, source, size)
        self._group.reduce_there(
            row.begin, row.stride, asked.count, asked.dtype, asked.op, everywhere=everywhere
        )
        memmove(target, row.own, size)
        self._group.barrier()  # others may read it until then

    def barrier(self) -> None:
        self._group.barrier()

    def differing(self, mine: Asked, odd: Asked) -> tuple[str, bool]:
        """The last rank makes another call. What was said, and whether the target is whole."""
        asked = odd if self.place.rank == self._group.size - 1 else mine
        source = given(asked, self.place.rank, self._group.size)
        target = buffer_of(asked, self.place.rank, self._group.size)
        if asked.kind == "broadcast":
            target[:] = source
        before = target.copy()
        try:
            getattr(self, f"_{asked.kind}")(
                self._group, asked, source.ctypes.data, target.ctypes.data
            )
        except Exception as error:
            return f"{type(error).__name__}: {error}", bool(np.array_equal(before, target))
        return "nothing", False

    def any_bits(self) -> list[bytes]:
        """Sums of random bytes, of some lengths and dtypes."""
        found = []
        draw = np.random.default_rng(self.place.rank)
        for dtype in CARRIES:
            for count in (5, 1000, 9001, 70_001):
                width = 2 if "16" in dtype else 8 if "64" in dtype else 4
                whole = np.frombuffer(draw.bytes(width * (count + 3)), numpy_dtype(dtype)).copy()
                x = whole[self.place.rank :][:count]
                self._group.all_reduce(x.ctypes.data, x.ctypes.data, count, dtype, "sum")
                found.append(x.tobytes())
        return found

    def call_again(self) -> str:
        try:
            self._group.barrier()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    def on_cores_of_their_own(self) -> None:
        """As far as there are so many. A rank waits in another way for one on its own core."""
        cores = sorted(self._cores)
        os.sched_setaffinity(0, {cores[self.place.rank % len(cores)]})
        self._group.barrier()  # it leaves word of the core

    def on_any_core(self) -> None:
        os.sched_setaffinity(0, self._cores)

    def seconds_of_waiting(self) -> tuple[float, float]:
        """In a barrier to which others come once they hear that this one waits. Of a core too."""
        begin, used = time.monotonic(), time.process_time()
        self._tell_of_waiting()
        self._group.barrier()
        return time.monotonic() - begin, time.process_time() - used

    def wait_for_others(self) -> str:
        """What ends a barrier to which they do not come."""
        try:
            self._tell_of_waiting()
            self._group.barrier()
        except (KeyboardInterrupt, Exception) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    def _tell_of_waiting(self) -> None:
        """The next call says so to the test, the first time that the core comes back from it."""
        core = self._group._core

        def again(handle: int) -> int:
            self._group._core = core
            self._parent.send("waits")
            return core["again"](handle)

        self._group._core = core | {"again": again}

    def halves(self) -> str:
        """Every half through a sum with zero, and halves' neighbours through a mean."""
        bits = np.arange(2**16, dtype=np.uint16)
        zero = np.zeros_like(bits)
        for dtype, wide in (("float16", bits.view(np.float16).astype(np.float32)),
                            ("bfloat16", widened("bfloat16", bits))):  # fmt: skip
            own = bits if self.place.rank == 0 else zero
            found = np.empty_like(bits)
            self._group.all_reduce(own.ctypes.data, found.ctypes.data, bits.size, dtype, "max")
            wanted = narrowed(dtype, np.maximum(wide, np.float32(0)))
            if not same_halves(dtype, found, wanted.view(np.uint16)):
                return f"{dtype}, max"
            other = bits + np.uint16(1) if self.place.rank else bits
            self._group.all_reduce(other.ctypes.data, found.ctypes.data, bits.size, dtype, "mean")
            with np.errstate(all="ignore"):
                mean = (wide + np.roll(wide, -1)) / np.float32(2)
                wanted = narrowed(dtype, mean).view(np.uint16)
            if not same_halves(dtype, found, wanted):
                return f"{dtype}, mean"
        return "as NumPy has them"

    def nans(self) -> list[list[str]]:
        """One from each rank in turn, in a min and a max of two dtypes."""
        found = []
        for dtype in ("float32", "float64"):
            for op in ("min", "max"):
                x = np.ones(self._group.size, dtype)
                x[self.place.rank] = np.nan
                self._group.all_reduce(x.ctypes.data, x.ctypes.data, x.size, dtype, op)
                found.append([str(one) for one in x])
        return found

    def until_it_fails(self, megabytes: float) -> str:
        """Reductions without end. What ended them."""
        x = np.ones(int(megabytes * 2**18), np.float32)
        try:
            while True:
                self._group.all_reduce(x.ctypes.data, x.ctypes.data, x.size, "float32", "max")
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def main() -> None:
    # a shell's background jobs begin with it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    port, key = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
    with Client(("127.0.0.1", port), authkey=key) as parent:
        rank = Rank(parent)
        parent.send(int(os.environ["RANK"]))
        while True:
            try:
                name, arguments = parent.recv()
            except EOFError:
                return
            try:
                outcome: Any = getattr(rank, name)(*arguments)
            except Exception as error:
                outcome = error
            parent.send(outcome)


if __name__ == "__main__":
    main()
