"""Compose collectives of what every transport does: reductions, and moves of words. Many tensors
travel in few buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast, final

from dream.collectives.tensors import SIZES, Tensors
from dream.collectives.transport import Combine, Length, Native, Op, Wire

_SMALL = 1 << 16
"""Elements below which a tensor shares a buffer; a larger one is not worth copying."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Tensors as they travel: large ones by themselves, the small ones of a dtype end to end.

    Large tensors go last to first, in the order in which backward has gradients ready.
    """

    tensors: Tensors
    originals: Sequence[Native]
    places: list[list[int]]
    buffers: list[Native]

    @classmethod
    def of(cls, tensors: Tensors, values: Sequence[Native], dtypes: Sequence[str]) -> Pack:
        """dtypes: what each value travels in."""
        small = [_is_small(tensors.shape(value)) for value in values]
        places = [[i] for i in reversed(range(len(values))) if not small[i]]
        shared: dict[str, list[int]] = {}
        for index, dtype in enumerate(dtypes):
            if small[index]:
                shared.setdefault(dtype, []).append(index)
        places += shared.values()
        flats = {i: tensors.flat(values[i], dtypes[i]) for place in places for i in place}
        buffers = [tensors.join([flats[i] for i in place]) for place in places]
        return cls(tensors, values, places, buffers)

    def unpack(self, buffers: Sequence[Native]) -> list[Native]:
        """Buffers alike the pack's, as tensors alike the originals."""
        results = list(self.originals)
        for buffer, place in zip(buffers, self.places, strict=True):
            lengths = [self.tensors.size(self.originals[i]) for i in place]
            parts = self.tensors.cut(buffer, lengths) if len(place) > 1 else [buffer]
            for index, part in zip(place, parts, strict=True):
                results[index] = self.tensors.shaped(part, self.originals[index])
        return results


def _is_small(shape: Sequence[int | None]) -> bool:
    return None in shape or prod(size for size in shape if size is not None) < _SMALL


@final
class Composed:
    """Collectives on native tensors; nothing is checked here.

    Lengths are of dim 0, in rank order; what is moved keeps its dtype and its other dims.
    """

    def __init__(self, wire: Wire, tensors: Tensors, rank: int, size: int) -> None:
        self._wire, self._tensors = wire, tensors
        self._rank, self._size = rank, size

    def all_reduce(self, value: Native, op: Op, dtype: str, *, own: bool = False) -> Native:
        """dtype: what `value` travels in; own: whether it may be overwritten."""
        tensors = self._tensors
        (flat,) = self._wire.all_reduce([tensors.flat(value, dtype, own=own)], _combine(op))
        if op == "mean":
            flat = tensors.over(flat, self._size)
        return tensors.shaped(flat, value)

    def all_reduce_many(
        self, values: Sequence[Native], op: Op, dtypes: Sequence[str]
    ) -> list[Native]:
        """dtypes: what the values travel in."""
        tensors = self._tensors
        pack = Pack.of(tensors, values, dtypes)
        flats = self._wire.all_reduce(pack.buffers, _combine(op))
        if op == "mean":
            flats = [tensors.over(flat, self._size) for flat in flats]
        return pack.unpack(flats)

    def broadcast(self, values: Sequence[Native], root: int) -> list[Native]:
        tensors = self._tensors
        moved = self._wire.broadcast([tensors.words(value) for value in values], root)
        return [
            tensors.unworded(words, tensors.dtype(value), tensors.sizes(value))
            for words, value in zip(moved, values, strict=True)
        ]

    def all_gather(self, value: Native, lengths: Sequence[Length], *, even: bool) -> Native:
        """even: whether the lengths are known to be the same."""
        words = self._tensors.words(value)
        counts = self._words(value, lengths)
        if even:
            moved = self._wire.all_gather(words)
        else:
            everywhere = self._tensors.join([words] * self._size)
            moved = self._wire.all_to_all(everywhere, [counts[self._rank]] * self._size, counts)
        return self._rows(moved, value, lengths, counts)

    def gather(self, value: Native, lengths: Sequence[Length], root: int) -> Native:
        """On other ranks than root, no row."""
        words, counts = self._tensors.words(value), self._words(value, lengths)
        mine = self._rank == root
        sends = [counts[self._rank] if rank == root else 0 for rank in range(self._size)]
        receives = counts if mine else [0] * self._size
        moved = self._wire.all_to_all(words, sends, receives)
        return self._rows(moved, value, lengths, counts) if mine else None

    def scatter(
        self, parts: Sequence[Native], root: int, dtype: str, shape: Sequence[Length]
    ) -> Native:
        """parts: a tensor for each rank on root, none elsewhere. dtype and shape: this rank's."""
        tensors = self._tensors
        worded = [tensors.words(part) for part in parts] or [tensors.numbers([])]
        sends = [tensors.size(words) for words in worded] if parts else [0] * self._size
        count = _words_of(dtype, shape)
        receives = [count if rank == root else 0 for rank in range(self._size)]
        moved = self._wire.all_to_all(tensors.join(worded), sends, receives)
        return tensors.unworded(moved, dtype, shape)

    def reduce_scatter(self, value: Native, op: Op, dtype: str) -> Native:
        """Each rank adds up its own chunk, in rank order."""
        tensors = self._tensors
        flat = tensors.flat(value, dtype)
        chunk = tensors.size(value) // self._size
        moved = self._wire.all_to_all(flat, [chunk] * self._size, [chunk] * self._size)
        result = tensors.combine(tensors.cut(moved, [chunk] * self._size), _combine(op))
        if op == "mean":
            result = tensors.over(result, self._size)
        own = tensors.cut(value, [tensors.sizes(value)[0] // self._size] * self._size)[0]
        return tensors.shaped(result, own)

    def all_to_all(self, parts: Sequence[Native], lengths: Sequence[Length]) -> list[Native]:
        """parts: one for each rank, alike but for dim 0. lengths: of what each rank sends here."""
        tensors = self._tensors
        worded = [tensors.words(part) for part in parts]
        counts = self._words(parts[0], lengths)
        sends = [tensors.size(words) for words in worded]
        moved = tensors.cut(self._wire.all_to_all(tensors.join(worded), sends, counts), counts)
        return [
            self._unworded(words, parts[0], length)
            for words, length in zip(moved, lengths, strict=True)
        ]

    def told(self, numbers: Sequence[Length]) -> list[list[Length]]:
        """Every rank's numbers, by the wire. As many on every rank."""
        count = len(numbers)
        words = self._tensors.numbers(numbers)
        moved = self._wire.all_gather(words)
        rows = self._tensors.cut(moved, [self._tensors.size(words)] * self._size)
        return [self._tensors.integers(row, count) for row in rows]

    def _words(self, value: Native, lengths: Sequence[Length]) -> list[Length]:
        dtype, (_, *rest) = self._tensors.dtype(value), self._tensors.sizes(value)
        return [_words_of(dtype, [length, *rest]) for length in lengths]

    def _rows(
        self,
        moved: Native,
        value: Native,
        lengths: Sequence[Length],
        counts: Sequence[Length],
    ) -> Native:
        parts = self._tensors.cut(moved, counts)
        return self._tensors.join(
            [
                self._unworded(words, value, length)
                for words, length in zip(parts, lengths, strict=True)
            ]
        )

    def _unworded(self, words: Native, like: Native, length: Length) -> Native:
        (_, *rest) = self._tensors.sizes(like)
        return self._tensors.unworded(words, self._tensors.dtype(like), [length, *rest])


def _combine(op: Op) -> Combine:
    return "sum" if op == "mean" else op


def _words_of(dtype: str, shape: Sequence[Length]) -> Length:
    return cast(Length, (prod(shape) * SIZES[dtype] + 3) // 4)
