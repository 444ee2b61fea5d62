"""A step on a mesh in micro-batches: a call for each, and one that applies their sum.

DTensor cannot lay out a loop; and of micro-batches that are written out in one graph it runs many
at a time, and saves no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dream.adapters.keras.private import tree
from dream.adapters.tensorflow.parallel.split.compiled import Traced, explained
from dream.adapters.tensorflow.parallel.split.onto import Onto, leaves

Part = Callable[..., list[Any]]
"""From a micro-batch, what it is of the whole batch, and how many samples that has: what is added
up. The last two are scalar tensors of float32."""


def in_micros(
    part: Part,
    finish: Callable[..., Any],
    onto: Onto,
    most: int,
    *,
    one_length: bool = True,
) -> Callable[..., Any]:
    """From whole batches what `finish` gives of the sums of what `part` does, as ordinary tensors.

    most: micro-batches of a batch, each with a sample at least.
    """
    parts = Traced(part, one_length=one_length)
    add = Traced(lambda *given: _added(given))
    finished = Traced(finish)

    def call(*batch: Any) -> Any:
        rows = int(leaves(batch)[0].shape[0])
        micros = min(max(rows, 1), most)
        sums: list[Any] = []
        with explained():
            onto.together.step("train")
            for micro in range(micros):
                start, stop = micro * rows // micros, (micro + 1) * rows // micros
                some = onto.batch(tree.map_structure(lambda x: _cut(x, start, stop), batch))  # noqa: B023
                share = np.float32((stop - start) / max(rows, 1))
                found = parts(*some, *onto.batch((share, np.float32(rows))))
                sums = list(add(*sums, *found)) if sums else list(found)
            return onto.whole(finished(*sums))

    return call


def _cut(x: Any, start: int, stop: int) -> Any:
    return None if x is None else x[start:stop]


def _added(given: tuple[Any, ...]) -> list[Any]:
    half = len(given) // 2
    return [a + b for a, b in zip(given[:half], given[half:], strict=True)]
