"""An optimizer that is sent to servers: what a framework does there, how it travels, and which
server holds which parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, final

from dream._errors import ConfigurationError, Unsupported
from dream._plain import Codec, Unpackable, name_of, pack
from dream.parameter_server.protocol import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Slice = TypeVar("_Slice", bytes, list[Any])


class ServerOptimizer(ABC):
    """A server's parameters and their optimizer. Never called by two threads at once."""

    @abstractmethod
    def build(self, spec: bytes, values: NDArray[Any]) -> None:
        """Take the first worker's optimizer, as `spec` describes it for this server, and the
        parameters end to end, shape (n,)."""

    @property
    @abstractmethod
    def values(self) -> NDArray[Any]:
        """The parameters end to end, shape (n,): the live ones."""

    @abstractmethod
    def read_settings(self, settings: bytes) -> Any:
        """Return hyper-parameters as a worker sent them, ready for `step`."""

    @abstractmethod
    def step(self, gradient: NDArray[Any], present: bytes, settings: Any) -> None:
        """Make one update. gradient: shape (n,); present: a byte for each parameter, 0 where it
        has no gradient, or empty where all have; settings: the worker's, or None for the spec's."""

    @abstractmethod
    def save(self) -> bytes:
        """Return the optimizer's state: for a snapshot, and for workers that ask for it."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Take back what `save` gave, after `build`."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A server's part of the parameters. start, stop: its elements in the flat ones; layout: names
    and shapes, for comparison; spec: for its `ServerOptimizer`."""

    start: int
    stop: int
    layout: Layout
    spec: bytes


@final
class ServerSharding:
    """Which server holds which parameter. They lie flat in the order of the servers, each server's
    in the order of the model's.

    placed: the indices of each server's parameters; order: of all, as they lie flat.
    """

    def __init__(self, shapes: Iterable[Sequence[int]], servers: int) -> None:
        self._shapes = [tuple(map(int, shape)) for shape in shapes]
        self.placed = place([prod(shape) for shape in self._shapes], servers)
        self.order = [index for indices in self.placed for index in indices]
        self._bounds = [0, *accumulate(map(len, self.placed))]

    def split(self, parameters: _Slice) -> list[_Slice]:
        """Split what is in the flat order, an item a parameter, by server."""
        return [parameters[a:b] for a, b in pairwise(self._bounds)]

    def shards(self, specs: Sequence[bytes]) -> list[Shard]:
        layouts = [tuple((i, self._shapes[i]) for i in indices) for indices in self.placed]
        stops = [0, *accumulate(sum(prod(s) for _, s in layout) for layout in layouts)]
        parts = zip(pairwise(stops), layouts, specs, strict=True)
        return [Shard(start, stop, layout, spec) for (start, stop), layout, spec in parts]


def place(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Return the indices of each server's parameters, ascending. Parameters stay whole, since some
    optimizers need all of one; the largest is placed first, where least is."""
    if len(sizes) < servers:
        raise ConfigurationError(
            f"There are more servers than parameters. Received: servers={servers}, {len(sizes)} "
            f"parameters. Use at most servers={len(sizes)}."
        )
    placed: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        server = min(range(servers), key=lambda s: (loads[s], len(placed[s]), s))
        placed[server].append(index)
        loads[server] += sizes[index]
    return [sorted(indices) for indices in placed]


def find_class(name: object, base: type[Any]) -> type[Any]:
    """Return the subclass of `base` in this process that has this name; the last of several.
    Nothing is imported for it, and nothing evaluated."""
    found = [kind for kind in _subclasses(base) if name_of(kind) == name]
    if not found:
        raise Unsupported(
            f"The server cannot create the workers' optimizer. Received: {name!r:.200}, and no "
            f"such {base.__name__} is there. Define its class in a module that the script imports "
            "before the block, or in the script before the block, so that the server knows it too."
        )
    return found[-1]


def pack_optimizer(value: object, owner: str, codec: Codec | None = None) -> bytes:
    """Pack a description or state; Unsupported, on the worker, where it cannot travel. owner: the
    optimizer's class, for the message."""
    try:
        return pack(value, codec)
    except Unpackable as error:
        refuse_optimizer(f"{owner} with something of type {error.kind} in it")


def refuse_optimizer(received: str) -> NoReturn:
    raise Unsupported(
        "The servers cannot run this optimizer: only its class name and plain values can be sent "
        f"to them. Received: {received}. Keep None, bool, numbers, strings, tuples, lists, dicts "
        "and tensors in its settings and state, and let its class create everything else."
    )


def _subclasses(base: type[Any]) -> list[type[Any]]:
    """List the subclasses, those of one class in the order of their making."""
    found = dict.fromkeys(base.__subclasses__())
    for kind in list(found):
        found |= dict.fromkeys(_subclasses(kind))
    return list(found)
