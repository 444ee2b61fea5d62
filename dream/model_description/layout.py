"""Whether every rank built the same parameters. Checked once, when a model is prepared: some
transports would otherwise add up whatever bytes they are given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from dream._errors import Desynchronized

_NUMBERS = re.compile(r"_\d+(?=/|$)")
Layout = Sequence[tuple[str, tuple[int, ...], str]]
"""(name, shape, dtype) of every parameter and buffer, in the model's order."""


def unnumbered(path: str) -> str:
    """A path of Keras's without the numbers that it counts through the process, since a rank may
    have made more objects than others."""
    return _NUMBERS.sub("", path)


def check_same(layouts: Sequence[Layout]) -> None:
    """Raise `Desynchronized` at the first entry in which a rank differs from rank 0.

    layouts: one per rank, in rank order; or what a rank told instead that is elsewhere.
    """
    for rank, layout in enumerate(layouts):
        if not _is_layout(layout):
            raise Desynchronized(
                "The ranks are at different points of the script: one makes a model ready to "
                f"train. Received from rank {rank}, where its parameters were meant: "
                f"{layout!r:.80}. Have every rank make the same calls in the same order."
            )
    for rank, layout in enumerate(layouts[1:], start=1):
        for ours, theirs in zip_longest(layouts[0], layout):
            if ours != theirs:
                raise Desynchronized(
                    "The ranks built different models. Received: "
                    f"{_tell(ours)} on rank 0, {_tell(theirs)} on rank {rank}. Build the same "
                    "model on every rank; only values may differ, and rank 0's are taken."
                )


def _is_layout(told: object) -> bool:
    return isinstance(told, list | tuple) and all(
        isinstance(entry, list | tuple) and len(entry) == 3 and isinstance(entry[0], str)
        for entry in told
    )


def _tell(entry: tuple[str, tuple[int, ...], str] | None) -> str:
    if entry is None:
        return "no further parameter"
    name, shape, dtype = entry
    return f"{name} {dtype}{list(shape)}"
