"""A group of ranks of one host, and what they do together on addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import Array, addressof, byref, c_double, c_uint64, c_void_p, get_errno
from os import strerror
from typing import Any, final

from dream import stall
from dream._errors import DreamError, Unsupported
from dream.shared_memory import failures
from dream.shared_memory.failures import DTYPES, KINDS, OPERATIONS, Code
from dream.shared_memory.library import library

_AGAIN = int(Code.AGAIN)
stall.waits_inside({__file__: "a call in shared memory"})
_DIRECT = 32 * 1024
_DIRECT_CROWDED = 256 * 1024
"""Up to so many bytes every rank adds up everything itself: one wait instead of two, which is
worth more where ranks wait for one another's cores."""


_RIDERS = 8


@final
class Riders:
    """Numbers that travel with every call of a group, and wait for nothing beside it.

    own: this rank's, at most as many as there are places. means: over the ranks, once a call is
    done, whatever it was. Places that a rank leaves count as zeros.
    """

    def __init__(self) -> None:
        self._arrays: tuple[Array[c_double], Array[c_double]] = (
            (c_double * _RIDERS)(),
            (c_double * _RIDERS)(),
        )
        self.own: Any = self._arrays[0]
        self.means: Any = self._arrays[1]

    def addresses(self) -> tuple[int, int]:
        """Return where the core finds this rank's and the means."""
        return addressof(self._arrays[0]), addressof(self._arrays[1])


@final
class Group:
    """A rank's side of it. All ranks make the same calls in the same order, one at a time.

    Addresses are of contiguous elements, in this process's memory, that stay where they are until
    the call returns; source and target may be the same. Counts are elements. tag: a number of the
    caller's that must be the same on every rank too. riders: what travels with each call.

    Every method raises `Desynchronized` on every rank, with nothing moved, where calls differ, and
    the group is as good as before; `WorkerFailed` where a rank has died or left, `Desynchronized`
    where one does not come within the stall time, and then the group is over.
    """

    def __init__(
        self,
        fd: int,
        ranks: Sequence[int],
        place: int,
        *,
        slot: int,
        spin: bool,
        seconds: float,
    ) -> None:
        """fd: of the memory, the group's from now on. ranks: as the job numbers them; place: this
        one's. slot: bytes, alike on every rank. spin: whether each has a core, alike too. seconds:
        how long a rank that does not come is waited for."""
        self._core = library()
        self.ranks, self.place, self._seconds = tuple(ranks), place, seconds
        direct = min(slot, _DIRECT if spin else _DIRECT_CROWDED)
        handle = c_void_p()
        code = self._core["open"](
            byref(handle), fd, None, len(ranks), place, slot, direct, spin, seconds
        )
        if code:
            raise _not_opened(Code(code))
        self._handle = handle.value
        self.riders = Riders()
        self._core["ride"](handle, *self.riders.addresses())

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def address(self) -> int | None:
        """The core's own handle, for native callers; None once closed."""
        return self._handle

    def barrier(self, tag: int = 0) -> None:
        self._run("barrier", tag)

    def all_reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, tag: int = 0
    ) -> None:
        """target: count elements, each combined over the ranks."""
        self._run(
            "all_reduce", source, target, count, *_codes(dtype, op), tag,
        )  # fmt: skip

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, tag: int = 0
    ) -> None:
        """source: count elements for each rank; target: count, this rank's combined."""
        self._run("reduce_scatter", source, target, count, *_codes(dtype, op), tag)

    def reduce_there(
        self, begin: int, stride: int, count: int, dtype: str, op: str, *, everywhere: bool
    ) -> None:
        """As all_reduce does, of buffers that lie in a `Row`, without moving them. everywhere: each
        rank has all results; else each has those of its part alone, and leaves its buffer as it is
        until the next call of all ranks."""
        self._run("reduce_there", begin, stride, count, *_codes(dtype, op), everywhere, 0)

    def broadcast(self, buffer: int, count: int, dtype: str, root: int, tag: int = 0) -> None:
        """buffer: read on root, a place in the group, and written on the others."""
        self._run("broadcast", buffer, count, _moved(dtype), root, tag)

    def all_gather(
        self, source: int, target: int, counts: Sequence[int], dtype: str, tag: int = 0
    ) -> None:
        """target: every rank's elements end to end, counts[b] of place b."""
        self._run("all_gather", source, target, self._each(counts), _moved(dtype), tag)

    def all_to_all(
        self,
        source: int,
        target: int,
        sends: Sequence[int],
        receives: Sequence[int],
        dtype: str,
        tag: int = 0,
    ) -> None:
        """The first sends[0] elements go to place 0, and so on; what came from it comes first."""
        lengths = self._each(sends), self._each(receives)
        self._run("all_to_all", source, target, *lengths, _moved(dtype), tag)

    def close(self) -> None:
        """Leave. Idempotent; not while a call is under way."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._core["close"](handle)

    def _each(self, counts: Sequence[int]) -> Any:
        if len(counts) != self.size or min(counts) < 0:
            raise ValueError(f"One count for each of {self.size} ranks. Received: {counts!r}.")
        return (c_uint64 * self.size)(*counts)

    def _run(self, name: str, *arguments: Any) -> None:
        """The core comes back now and then, so that signals are heard."""
        handle = self._handle
        if handle is None:
            raise ValueError("The group is closed.")
        call: Callable[..., int] = self._core[name]
        try:
            code = call(handle, *arguments)
            if code == _AGAIN:
                with stall.waiting(f"{name}() in shared memory"):
                    while code == _AGAIN:
                        code = self._core["again"](handle)
        except BaseException:  # a signal, in the middle: the others must not wait for this rank
            self._core["abandon"](handle)
            raise
        if code:
            raise self.error(code, name)

    def error(self, number: int, name: str) -> DreamError:
        """What a call's code means; for native callers too. name: the call's."""
        code = Code(number)
        if code is Code.BUSY:
            return failures.busy()
        said = [self._core["said"](self._handle, place) for place in range(self.size)]
        if code is Code.MISMATCH:
            return failures.mismatch(self.ranks, said)
        culprit = self._core["culprit"](self._handle)
        own = said[self.place]
        doing = failures.in_words(own) if KINDS[own.kind] == name else f"{name}()"
        last = failures.in_words(said[culprit]) if culprit >= 0 else ""
        rank = self.ranks[culprit] if culprit >= 0 else -1
        return failures.failure(code, rank, doing, last, self._seconds)


def _codes(dtype: str, op: str) -> tuple[int, int]:
    if dtype not in DTYPES or dtype == "bytes" or op not in OPERATIONS:
        raise Unsupported(
            f"Shared memory cannot reduce this. Received: op={op!r}, {dtype}. Use one of "
            f"{', '.join(OPERATIONS)}, and cast to one of {', '.join(DTYPES)}."
        )
    if op == "mean" and dtype.startswith("int"):
        raise Unsupported(f"There is no mean of {dtype}. Cast it to a float first.")
    return DTYPES[dtype], OPERATIONS[op]


def _moved(dtype: str) -> int:
    if dtype not in DTYPES:
        raise Unsupported(
            f"Shared memory does not support this dtype. Received: {dtype}. Use one of "
            f"{', '.join(DTYPES)}; bytes serves for any."
        )
    return DTYPES[dtype]


def _not_opened(code: Code) -> Unsupported:
    why = strerror(get_errno()) if code is Code.SYSTEM else code.name
    return Unsupported(
        f"The ranks' shared memory cannot be opened. Received: {why}. Use another reduction."
    )
