"""What a recorder reads off models, batches and states, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Named = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a model, read at the end.

    dtype: what it computes in. trained: parameters that get gradients, as a report calls them,
    each once. draws, statistics: names of the parts that draw random numbers,
    and of those that normalise over a batch. named: what a name in its state is called in a report;
    None for what says nothing about learning.
    """

    dtype: str
    trained: Collection[str]
    draws: Sequence[str]
    statistics: Sequence[str]
    named: Named


def is_of(model: Any, kind: str) -> bool:
    """Whether the model is of a kind, which is named by where its base class is."""
    return any(f"{base.__module__}.{base.__name__}" == kind for base in type(model).__mro__)


def samples(batch: Sequence[Any]) -> int | None:
    shape = getattr(batch[0], "shape", None) if batch else None
    return int(shape[0]) if shape and shape[0] is not None else None


def arrays(state: dict[str, NDArray[Any]], named: Named, prefix: str) -> dict[str, NDArray[Any]]:
    """What can be compared; what NumPy has no number for (bfloat16) as float32."""
    import numpy as np

    found = {}
    for name, value in state.items():
        known = named(name)
        if known is not None and value.dtype.kind not in "OSU":
            plain = value.dtype.kind in "biufc"
            found[prefix + known] = value if plain else value.astype(np.float32)
    return found


def trained_bytes(state: dict[str, NDArray[Any]], traits: Traits) -> int:
    """Of what gets gradients."""
    return sum(
        value.nbytes for name, value in state.items() if traits.named(name) in traits.trained
    )


def coarsest(names: Sequence[str]) -> str:
    known = ("bfloat16", "float16", "float32", "float64")
    return next((name for name in known if name in names), "float32")
