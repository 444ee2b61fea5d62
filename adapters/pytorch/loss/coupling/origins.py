"""What tensors are made of: a batch's rows each by itself, all of them, or chosen ones; and how
that is found by half of the rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from dream.adapters.pytorch.private import tree_leaves
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.rows import Place, Rows

_PARTS = ("pytorch.collectives", "pytorch.update", "pytorch.loss", "pytorch.data", "pytorch.keras",
          "shared_memory", "horovod")  # fmt: skip
_OWN = ("dream.collectives", *(f"dream.adapters.{each}" for each in _PARTS))
"""Whose calls are dream's own, and not those of a script's function that dream calls."""
_BETWEEN = ("torch", "dream.adapters.pytorch.data.held_batch")
"""What is called by others in turn."""
_ADAPTER = str(Path(__file__).parents[2])


@final
@dataclass(frozen=True, slots=True)
class MixedRows:
    """Made of all rows. name: of the function that did. source: what it gave. gone: whether that
    has no row for each any more, whatever its sizes."""

    name: str
    source: torch.Tensor
    gone: bool = False

    def is_in(self, x: torch.Tensor, rows: int) -> bool:
        """Whether rows that were mixed are in a tensor, as far as sizes tell."""
        itself = x.shape == self.source.shape and x.data_ptr() == self.source.data_ptr()
        return rows in x.shape[:2] and not (self.gone and itself)


@final
class UnknownOrder:
    """The order of what a call gave of rows that were not followed to it: that of the first rows
    that they meet. known: whether they have."""

    def __init__(self) -> None:
        self.known = False
        self.by: tuple[int, ...] | None = None

    def settle(self, by: tuple[int, ...] | None) -> None:
        self.known, self.by = True, by


@final
@dataclass(frozen=True, slots=True)
class OfRows:
    """Made row by row. n: rows of the share. order: numbers that put rows in another order. sorted:
    put in the order of what is in them, so that each goes by all. by: numbers of the rows, where
    the script has put them in an order of its own."""

    n: int
    place: Place
    order: bool = False
    sorted: bool = False
    by: tuple[int, ...] | UnknownOrder | None = None

    def half(self, x: torch.Tensor, *, last: bool = False) -> torch.Tensor:
        rows, h = self.place, self.n // 2
        first = self.n - h if last else 0
        if rows.each == 1 or not rows.copies:
            return x.detach().narrow(rows.dim, first * rows.each, h * rows.each).clone()
        parts: torch.Tensor = x.detach().unflatten(rows.dim, (rows.each, self.n))
        return parts.narrow(rows.dim + 1, first, h).flatten(rows.dim, rows.dim + 1)


@final
@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Some of the rows, as a mask chooses them; count of them, along dim 0. cut: the function that
    cut them off by their number, if one did."""

    count: int
    cut: str = ""


@final
@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows of batches of several sizes, one after another along dim 0. parts: of each, how many
    samples there are, and how many rows each has."""

    parts: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        return sum(n * each for n, each in self.parts)

    def half(self, x: torch.Tensor, *, last: bool = False) -> torch.Tensor:
        runs = x.detach().split([n * each for n, each in self.parts])
        halves = [OfRows(n, Place(0, each)).half(run, last=last)
                  for run, (n, each) in zip(runs, self.parts, strict=True)]  # fmt: skip
        with current.reading():  # what is joined here is no batch's
            return torch.cat(halves)

    def fits(self, x: torch.Tensor, half: torch.Tensor | None) -> bool:
        """Whether a function's result has such rows, each made by itself. half: what it gave of
        half of each batch's; None where that tells nothing, and sizes do."""
        return x.shape[:1] == (self.length,) and (half is None or same_values(self.half(x), half))


Origin = MixedRows | OfRows | ChosenRows | JoinedRows
_SIZES = {"arange", "zeros", "ones", "empty", "full", "eye", "linspace", "empty_like", "new_empty",
          "new_zeros", "new_ones", "new_full"}  # fmt: skip
_PACKS = {"_pack_padded_sequence", "_pad_packed_sequence"}
_CHANGES = {"batch_norm", "instance_norm", "embedding", "embedding_bag", "backward", "grad"}
LEFT_OUT = _SIZES | _PACKS | _CHANGES
"""What takes a number for a size alone, as a mask up to the longest does; puts rows in another
order; or must not be called twice."""
ORDERS = {"argsort", "sort"}
ADDS_UP = {"scatter_add_", "scatter_reduce_", "index_add_", "index_reduce_"}
"""What adds rows up in a tensor that has others, as one for each class."""
PICKS = {"__getitem__", "select", "unbind", "narrow", "split", "chunk", "__iter__", "index_select"}
"""What may take a row, or rows, by number."""
READS = {"item", "__float__", "__int__"}
WATCHED = READS | {"detach"}
"""What a script calls by way of dream, which watches it."""
LEAVE = {"numpy", "tolist", "__array__", "__dlpack__"}
"""What hands values to others than torch."""
_LEAVES = {torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None),
           torch.dtype, torch.device}  # fmt: skip
_DEEP, _OBJECTS = 4, 64
"""How deep in objects of a batch, and in how many, tensors are looked for."""


def leaves_of(tree: Any) -> list[Any]:
    """As torch's tree_leaves, which takes a fifth of the time that a small model's loop has."""
    kind = type(tree)
    if kind in _LEAVES:
        return [tree]
    if kind is tuple or kind is list:
        return [leaf for each in tree for leaf in leaves_of(each)]
    if kind is dict:
        return [leaf for each in tree.values() for leaf in leaves_of(each)]
    return tree_leaves(tree)


def tensors_of(made: Any) -> list[torch.Tensor]:
    return [x for x in leaves_of(made) if isinstance(x, torch.Tensor)]


def in_batch(batch: object) -> list[torch.Tensor]:
    """Return a batch's tensors. Not what is trained."""
    return [x for x in tensors_within(batch) if not x.requires_grad]


def samples_in(batch: object, count: int) -> set[int]:
    """Return the ids of tensors that are a sample each: in lists of as many as there are samples,
    which are of several lengths."""
    found: set[int] = set()
    if not isinstance(batch, (dict, list, tuple)):
        return found
    for each in batch.values() if isinstance(batch, dict) else batch:
        listed = isinstance(each, (list, tuple)) and len(each) == count
        if listed and all(isinstance(x, torch.Tensor) and x.dim() for x in each):
            found |= {*map(id, each)} if len({*map(len, each)}) > 1 else set()
    return found


def tensors_within(made: object) -> list[torch.Tensor]:
    """As `tensors_of`, and those of what has a class of its own: a graph with its nodes and edges,
    a mapping of words, a dataclass."""
    found: list[torch.Tensor] = []
    left, seen = [(leaf, _DEEP) for leaf in leaves_of(made)], set[int]()
    while left and len(seen) < _OBJECTS:
        leaf, deep = left.pop(0)
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif deep and type(leaf) not in _LEAVES and not isinstance(leaf, torch.nn.Module | type):
            own = _attributes_of(leaf)
            if own and id(leaf) not in seen:
                seen.add(id(leaf))
                left += [(each, deep - 1) for each in leaves_of(own)]
    return found


def _attributes_of(thing: object) -> list[Any]:
    slots = (getattr(kind, "__slots__", ()) for kind in type(thing).__mro__)
    names = (name for each in slots for name in ((each,) if isinstance(each, str) else each))
    own = [getattr(thing, name) for name in names if name[:2] != "__" and hasattr(thing, name)]
    return [*getattr(thing, "__dict__", {}).values(), *own]


def node_of(x: torch.Tensor) -> Any:
    """What made a tensor, in its graph. One that an optimizer has as a view of a parameter does not
    say."""
    with suppress(RuntimeError):
        return x.grad_fn
    return None


def is_in_place(name: str) -> bool:
    if name.startswith("__"):
        return name in ("__set__", "__setitem__") or (
            name.startswith("__i") and name not in ("__invert__", "__int__", "__index__")
        )
    return name.endswith("_")


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_floating_point() or one.is_complex():
        finite = one.detach().nan_to_num(0.0, 0.0, 0.0).abs()
        scale = float(finite.max()) if one.numel() else 0.0
        return torch.allclose(one.detach(), other, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)
    return torch.equal(one, other)


def takes_rows(name: str, leaves: Sequence[Any], origins: dict[int, Origin]) -> bool:
    """Whether a function puts the rows of its first argument in an order."""
    if name not in ("__getitem__", "index_select", "take_along_dim", "gather") or len(leaves) != 2:
        return False
    first, second = (origins.get(id(x)) for x in leaves)
    rows = isinstance(first, OfRows) or (first is None and leaves[0].requires_grad)  # as packed
    return rows and isinstance(second, OfRows) and second.order


def takes_one_row(name: str, args: Any, origin: Origin | None) -> bool:
    """Whether one row is taken by its number, which has no dim of rows, whatever its sizes."""
    if not isinstance(origin, OfRows) or origin.place.dim or len(args) < 1:
        return False
    if name in ("unbind", "__iter__"):
        return leaves_of(args[1:]) in ([], [0])
    if name == "select":
        return len(args) > 1 and args[1] == 0
    at = args[1] if name == "__getitem__" and len(args) > 1 else None
    return type(at[0] if isinstance(at, tuple) and at else at) is int


def fills_rows(name: str, leaves: Sequence[Any], origins: dict[int, Origin]) -> bool:
    """Whether a function writes to rows, wherever they are chosen."""
    return is_in_place(name) and isinstance(origins.get(id(leaves[0])), OfRows)


def of_torch(func: Any) -> Any:
    """A function as torch has it: by its name torch finds what the block has put in its place,
    which has come by already."""
    while hasattr(func, "__wrapped__") and hasattr(func, "__code__"):
        if not func.__code__.co_filename.startswith(_ADAPTER):
            break
        func = func.__wrapped__
    return func


def is_recorded() -> bool:
    """Whether what is called is put into a graph, of Dynamo's or of CUDA's."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def called_by_dream() -> bool:
    """Whether a function that a mode is told of was called by dream's own code."""
    frame = sys._getframe(2)
    while (name := frame.f_globals.get("__name__", "")).startswith(_BETWEEN) and frame.f_back:
        frame = frame.f_back
    return str(name).startswith(_OWN)


def place_of(x: torch.Tensor, rows: Rows) -> Place | None:
    """Where the batch's rows are in a tensor."""
    with suppress(RuntimeError):  # nested ones have no sizes
        return rows.find(x.shape)
    return None
