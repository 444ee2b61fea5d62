"""What the loop makes of a batch's rows, and where rows meet what was made of all of them.

A weight over the batch's largest, ranks of targets, a median that hard samples are above: each is
another number on a share, and neither the graph nor the number itself tells. So in the first steps
every function that is called on a share is called on its first half too. A function of each row by
itself gives the half of what it gave; any other has mixed the rows. What comes of that is followed
to where it meets rows that are trained on, and that node is marked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final
from weakref import ref

import torch
from torch.overrides import TorchFunctionMode

from dream.adapters.pytorch import private
from dream.adapters.pytorch.loss.calls import TrainingCall, call_at
from dream.adapters.pytorch.private import tree_leaves, tree_map
from dream.adapters.pytorch.randomness.current import same, state
from dream.adapters.pytorch.randomness.rows import Place, Rows
from dream.data.partition import Share

_MET = "dream.met"
"""A key of a graph node's metadata: what its rows met."""
_FEWEST = 4
"""Rows that a share must have."""
_MOST = 20_000
"""Calls that are followed between two backward passes: a loop may never come to one."""
_ITSELF = {"one_hot"}
"""Each row by itself, whose width goes by all of them."""
_CHANGES = {"batch_norm", "instance_norm", "embedding", "embedding_bag", "backward", "grad"}
"""What must not be called twice, or is no function of rows."""
_COUNTS = {"sum", "mean", "count_nonzero", "nansum", "nanmean"}
"""What gives a count of a share, which is the global batch's in part."""
_ORDERS = {"argsort", "sort"}
_ADAPTER = str(Path(__file__).parents[2])
_PARTS = ("pytorch.collectives", "pytorch.update", "pytorch.loss", "pytorch.data",
          "shared_memory", "horovod")  # fmt: skip
_OWN = ("dream.collectives", *(f"dream.adapters.{each}" for each in _PARTS))
"""Whose calls are dream's own, and not those of a script's function that dream calls."""


@final
@dataclass(frozen=True, slots=True)
class MixedRows:
    """Made of all rows. name: of the function that did. source: what it gave."""

    name: str
    source: torch.Tensor


@final
@dataclass(frozen=True, slots=True)
class OfRows:
    """Made row by row. n: rows of the share. order: numbers that put rows in another order."""

    n: int
    place: Place
    order: bool = False

    def half(self, x: torch.Tensor) -> torch.Tensor:
        rows, h = self.place, self.n // 2
        if rows.each == 1 or not rows.copies:
            return x.detach().narrow(rows.dim, 0, h * rows.each).clone()
        parts: torch.Tensor = x.detach().unflatten(rows.dim, (rows.each, self.n))
        return parts.narrow(rows.dim + 1, 0, h).flatten(rows.dim, rows.dim + 1)


@final
@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Some of the rows, as a mask chooses them; count of them, along dim 0."""

    count: int


Origin = MixedRows | OfRows | ChosenRows


@final
class Lineage(TorchFunctionMode):
    """Follows the batches of one loop. wanted: whether anybody looks at what is found."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        super().__init__()
        self._wanted = wanted
        self._entered = self._follows = False
        self._origins: dict[int, tuple[ref[torch.Tensor], Origin]] = {}
        self._inputs: list[MixedRows] = []
        self._inside: TrainingCall | None = None
        self._calls = 0
        self._looked = False

    def begin(self, batch: object, share: Share) -> None:
        """A loader hands out a batch to train on."""
        if share.parts * share.micros < 2 or share.count < _FEWEST or not self._wanted():
            self.rest()
            return
        if private.compiles() or not torch.is_grad_enabled():
            self.rest()  # a graph that is compiled would be compiled again without this
            return
        if self._looked:
            self.end()
        rows = Rows.of(share)
        for x in tree_leaves(batch):
            place = rows.find(x.shape) if isinstance(x, torch.Tensor) else None
            if place is not None:
                self._put(x, OfRows(share.count, place))
        self._follows = True
        if not self._entered:
            self._entered = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def called(self, call: TrainingCall, args: Iterable[object]) -> None:
        """A distributed module is called to train: what its inputs are made of comes into the
        loss. What it does itself is not looked at until it has returned."""
        if self._follows:
            self._inside = call
            origins = (self._origin(x) for x in tree_leaves(args))
            self._inputs += [each for each in origins if isinstance(each, MixedRows)]

    def end(self) -> None:
        """Forget what there is."""
        self._follows = self._looked = False
        self._calls, self._inside = 0, None
        self._origins.clear()
        self._inputs.clear()

    def rest(self) -> None:
        """Be out of the way. Where a mode of the script's lies above this one, it is so later."""
        self.end()
        if self._entered and private.innermost_mode() is self:
            self._entered = False
            self.__exit__(None, None, None)

    def met(self, nodes: Iterable[Any], read: Collection[Any]) -> list[MixedRows]:
        """What rows met at some nodes of a graph, and at the inputs of calls. read: nodes whose
        divisor is taken for a count. A step's backward passes may be several: what follows the
        next batch is forgotten with that."""
        self._looked = True
        at_nodes: list[MixedRows] = []
        for node in nodes:
            found = node.metadata.get(_MET)
            if found is not None and not (node in read and found.name in _COUNTS):
                at_nodes.append(found)
        return [*{id(each.source): each for each in (*self._inputs, *at_nodes)}.values()]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        func = _of_torch(func)
        if not self._follows or self._is_inside() or torch.compiler.is_compiling():
            return func(*args, **given)
        name = getattr(func, "__name__", "")
        leaves = [x for x in tree_leaves((args, given)) if isinstance(x, torch.Tensor)]
        origins = {id(x): origin for x in leaves if (origin := self._origin(x)) is not None}
        if not origins or name in _CHANGES or _called_by_dream():
            return func(*args, **given)
        self._calls += 1
        if self._calls > _MOST:
            self.end()
            return func(*args, **given)
        return self._followed(func, name, args, given, leaves, origins)

    def _is_inside(self) -> bool:
        if self._inside is not None and self._inside.returned:
            self._inside = None
        return self._inside is not None

    def _followed(
        self, func: Any, name: str, args: Any, given: Any, leaves: list[Any],
        origins: dict[int, Origin],
    ) -> Any:  # fmt: skip
        in_place = (
            "out" in given
            or name in ("__set__", "__setitem__")
            or (name.endswith("_") and not name.endswith("__"))
            or (name.startswith("__i") and name not in ("__invert__", "__int__", "__index__"))
        )
        before = state()
        made = func(*args, **given)
        drawn = not same(before, state())
        outs = [x for x in _tensors(made) if type(x) in (torch.Tensor, torch.nn.Parameter)]
        mixed = [o for o in origins.values() if isinstance(o, MixedRows)]
        rows = [o for o in origins.values() if isinstance(o, OfRows)]
        chosen = [o for o in origins.values() if isinstance(o, ChosenRows)]
        ordering = [o for o in rows if o.order]
        if ordering and not _takes_rows(name, leaves, origins) and name not in _ORDERS:
            order = next(x for x in leaves if getattr(origins.get(id(x)), "order", False))
            mixed.append(MixedRows("argsort", order))
        if mixed:
            constant = [o for x in leaves if not x.requires_grad
                        if isinstance(o := origins.get(id(x)), MixedRows)]  # fmt: skip
            meets = bool(rows or chosen or constant)
            self._mix([*constant, *mixed][0], [*outs, *leaves[:1]] if in_place else outs, meets)
        elif chosen and not in_place:
            self._follow_chosen(name, outs, chosen[0].count)
        elif rows and outs and not in_place:
            halves = None if drawn or name in _ITSELF else _halved((args, given), origins)
            self._sort_out(func, name, halves, outs, rows[0])
        return made

    def _follow_chosen(self, name: str, outs: list[torch.Tensor], count: int) -> None:
        """By sizes alone: there is no half of them to try."""
        for x in outs:
            kept = x.dim() and x.shape[0] and x.shape[0] % count == 0
            self._put(x, ChosenRows(x.shape[0]) if kept else MixedRows(name, x.detach()))

    def _mix(self, mixed: MixedRows, outs: list[torch.Tensor], meets: bool) -> None:
        for x in outs:
            self._put(x, mixed)
            if meets and x.grad_fn is not None:
                private.note(x.grad_fn, _MET, mixed)

    def _sort_out(
        self, func: Any, name: str, halves: Any, outs: list[torch.Tensor], of: OfRows
    ) -> None:
        """Find what a function of rows alone has made."""
        half: list[Any] | None = None
        if halves is not None:
            try:
                with torch.no_grad():
                    half = _tensors(func(*halves[0], **halves[1]))
            except Exception:
                half = None
        if half is not None and len(half) != len(outs):
            return
        for index, x in enumerate(outs):
            if half is None:
                place = Rows(slice(None), of.n, of.n).find(x.shape)
                if place is not None:
                    self._put(x, replace(of, place=place, order=False))
                continue
            origin: Origin | None = _origin_of(x, half[index], of.n)
            if origin is None and name in _ORDERS and x.shape == (of.n,):
                is_order = not x.is_floating_point() and (name == "argsort" or index == 1)
                origin = OfRows(of.n, Place(0), order=is_order)
            if origin is None and _begins_with(x, half[index]):
                origin = ChosenRows(len(x)) if len(x) > 1 else None
            elif origin is None and not _same(x, half[index]):
                origin = MixedRows(name, x.detach())
            if origin is not None:
                self._put(x, origin)

    def _put(self, x: torch.Tensor, origin: Origin) -> None:
        key = id(x)
        self._origins[key] = ref(x, lambda _: self._origins.pop(key, None)), origin

    def _origin(self, x: object) -> Origin | None:
        found = self._origins.get(id(x))
        if found is not None and found[0]() is x:
            return found[1]
        if not isinstance(x, torch.Tensor) or x.grad_fn is None:
            return None
        call = call_at(x.grad_fn)
        if call is None or call.share is None or call.share.count < _FEWEST:
            return None
        place = Rows.of(call.share).find(x.shape)
        return None if place is None else OfRows(call.share.count, place)


def _of_torch(func: Any) -> Any:
    """A function as torch has it: by its name torch finds what the block has put in its place,
    which has come by already."""
    while hasattr(func, "__wrapped__") and hasattr(func, "__code__"):
        if not func.__code__.co_filename.startswith(_ADAPTER):
            break
        func = func.__wrapped__
    return func


def _called_by_dream() -> bool:
    frame = sys._getframe(2)
    while (name := frame.f_globals.get("__name__", "")).startswith("torch") and frame.f_back:
        frame = frame.f_back
    return str(name).startswith(_OWN)


def _tensors(made: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(made) if isinstance(x, torch.Tensor)]


def _halved(given: Any, origins: dict[int, Origin]) -> Any:
    """Arguments with half of the rows."""

    def halve(x: Any) -> Any:
        origin = origins.get(id(x))
        if isinstance(origin, OfRows):
            return origin.half(x)
        return x.detach() if isinstance(x, torch.Tensor) else x

    return tree_map(halve, given)


def _takes_rows(name: str, leaves: Sequence[Any], origins: dict[int, Origin]) -> bool:
    """Whether a function puts the rows of its first argument in an order."""
    if name not in ("__getitem__", "index_select", "take_along_dim", "gather") or len(leaves) != 2:
        return False
    first, second = (origins.get(id(x)) for x in leaves)
    return isinstance(first, OfRows) and isinstance(second, OfRows) and second.order


def _origin_of(x: torch.Tensor, half: torch.Tensor, n: int) -> OfRows | None:
    """Where what a function made has the rows, if its half is what it made of half of them."""
    if x.dim() != half.dim():
        return None
    for place, rows, own in _places(x, half, n):
        if rows.shape == own.shape and _same(rows, own):
            return OfRows(n, place)
    return None


def _places(
    x: torch.Tensor, half: torch.Tensor, n: int
) -> Iterator[tuple[Place, torch.Tensor, torch.Tensor]]:
    h = n // 2
    for dim, size in enumerate(x.shape):
        if not size or size % n:
            continue
        each = size // n
        yield Place(dim, each), x.narrow(dim, 0, h * each), half
        if each > 1 and half.shape[dim] == h * each:
            parts = x.unflatten(dim, (each, n)).narrow(dim + 1, 0, h)
            yield Place(dim, each, copies=True), parts, half.unflatten(dim, (each, h))


def _begins_with(x: torch.Tensor, half: torch.Tensor) -> bool:
    """Whether the half gave the first rows of what all gave, which are fewer."""
    several = x.dim() and x.dim() == half.dim() and len(half) < len(x)
    return bool(several) and _same(x[: len(half)], half)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_floating_point() or one.is_complex():
        scale = float(one.detach().abs().max()) if one.numel() else 0.0
        return torch.allclose(one.detach(), other, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)
    return torch.equal(one, other)
