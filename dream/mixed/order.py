"""Put a model's arrays in the canonical order and layout, and its sums in one order on all ranks:
what ranks of two frameworks hand to a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, final

from dream._errors import Desynchronized, Unsupported
from dream.collectives import Communicator
from dream.mixed.consistency import gathered
from dream.model_description.layers import Description, Layer, What, from_canonical, to_canonical
from dream.model_description.layout import Layout
from dream.model_description.steps import Ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN = 0.6180339887498949
_NEAR = 1e-5
"""Of the sum of absolute values: what another framework's preprocessing may change."""


_Words = dict[int, tuple[Any, ...]]
"""`Targets` as a plain value."""


@final
@dataclass(slots=True)
class Sum:
    """The sum of one rank's shares. samples: so far; sort: integers or floats, and the shape of
    one."""

    sort: str = ""
    samples: int = 0
    total: float = 0.0
    absolute: float = 0.0

    def add(self, targets: NDArray[Any]) -> None:
        import numpy as np

        if not len(targets):
            return
        kind = "floats" if targets.dtype.kind == "f" else "integers"
        self.sort = f"{kind} {tuple(targets.shape[1:])}"
        each = targets.reshape(len(targets), -1).astype(np.float64).sum(axis=1)
        weights = 1.0 + np.modf((self.samples + np.arange(len(each))) * _GOLDEN)[0]
        self.samples += len(each)
        self.total += float(weights @ each)
        self.absolute += float(weights @ np.abs(each))

    def differs(self, other: Sum) -> bool:
        """Where both have targets of one sort; classes and one-hot vectors, for instance, cannot
        be compared."""
        if self.samples != other.samples:
            return True
        near = _NEAR * max(self.absolute, other.absolute)
        return self.sort == other.sort and abs(self.total - other.total) > near


@final
@dataclass(slots=True)
class Targets:
    """What a rank has seen of a pass over the data. shares: by the rank whose they are."""

    shares: dict[int, Sum] = field(default_factory=dict)

    def add(self, rank: int, targets: NDArray[Any]) -> None:
        self.shares.setdefault(rank, Sum()).add(targets)

    def add_whole(self, targets: NDArray[Any], parts: int) -> None:
        """Of a global batch, of which every parts-th sample is a rank's."""
        for rank in range(parts):
            self.add(rank, targets[rank::parts])

    @property
    def _words(self) -> _Words:
        return {rank: astuple(share) for rank, share in self.shares.items()}

    @classmethod
    def _of(cls, words: _Words) -> Targets:
        return cls({rank: Sum(*share) for rank, share in words.items()})

    def compare(self, communicator: Communicator, what: str) -> None:
        """Raise `Desynchronized` where another rank saw other targets. Every rank calls it."""
        said = gathered(communicator, self._words, f"compares {what}")
        everybody = [Targets._of(words) for words in said]
        for share in range(communicator.world_size):
            sums = [(rank, seen.shares.get(share)) for rank, seen in enumerate(everybody)]
            _check(sums, share, what)


def _check(sums: Sequence[tuple[int, Sum | None]], share: int, what: str) -> None:
    known = [(rank, seen) for rank, seen in sums if seen is not None]
    for rank, seen in known[1:]:
        first_rank, first = known[0]
        if seen.differs(first):
            raise Desynchronized(
                f"The ranks read different data. Received: rank {share}'s share of {what} has "
                f"{_tell(first)} on rank {first_rank}, {_tell(seen)} on rank {rank}. Give every "
                "rank the same samples in the same order: strategy.order(samples, epoch) gives the "
                "order of a shuffled torch loader; tf.data's shuffle uses another."
            )


def _tell(seen: Sum) -> str:
    return f"{seen.samples} targets ({seen.sort}) of weighed sum {seen.total:.6g}"


@final
class InOrder:
    """The layers of one model. A tied array travels once, under the name that came first."""

    def __init__(self, description: Description, ops: Ops) -> None:
        for layer in description.layers:
            _check_travels(layer)
        self._layers = description.layers
        self._ops = ops
        self._tied = {p.name for layer in self._layers for p in layer.parameters if p.same_as}

    @property
    def names(self) -> list[str]:
        """Of every parameter and buffer that travels."""
        found = [p.name for layer in self._layers for p in layer.parameters]
        return [name for name in found if name not in self._tied]

    def layout(self, names: Sequence[str]) -> Layout:
        """Of the list that arrays of these names make: (layer and role, canonical shape, dtype),
        the layer told by its kind too."""
        return [
            (f"{layer.name} ({layer.kind}) {role}", layer.roles[role], _dtype(layer, role))
            for layer, roles in self._roles(names)
            for role in roles
        ]

    def listed(self, arrays: Mapping[str, Any], what: What) -> list[Any]:
        """The arrays, by name, as canonical ones in order."""
        free = {name: array for name, array in arrays.items() if name not in self._tied}
        return [
            canonical
            for layer in self._layers
            for canonical in to_canonical(layer, free, self._ops, what).values()
        ]

    def named(self, listed: Sequence[Any], names: Sequence[str], what: What) -> dict[str, Any]:
        """The inverse of `listed`, for arrays of these names."""
        following = iter(listed)
        found: dict[str, Any] = {}
        for layer, roles in self._roles(names):
            canonical = {role: next(following) for role in roles}
            found |= from_canonical(layer, canonical, self._ops, what)
        return found

    def _roles(self, names: Sequence[str]) -> list[tuple[Layer, list[str]]]:
        """Each layer, with the roles of which every holder is named."""
        named = set(names) - self._tied
        return [
            (layer, [r for r in layer.roles if all(p.name in named for p in layer.holders(r))])
            for layer in self._layers
        ]


def _dtype(layer: Layer, role: str) -> str:
    return layer.holders(role)[0].dtype


def _check_travels(layer: Layer) -> None:
    if layer.summed:
        role = min(layer.summed)
        names = ", ".join(p.name for p in layer.holders(role))
        raise Unsupported(
            f"This layer sums several parameters where the other framework has one ({role}), so "
            f"the optimizer would move it several times. Received: {names} of {layer.name!r} "
            f"({layer.kind}). Pass bias=False there and use_bias=False in Keras, or train it in "
            "Keras on both."
        )
