"""Many tensors in few buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dream.collectives.tensors import Tensors
from dream.collectives.wire import Native

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
