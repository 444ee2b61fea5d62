"""Constants of a loss that were computed from its batch, which no graph tells.

Weights divided by their sum, advantages that are normalised, weights of classes that were counted:
each couples the samples, and on a share of the batch is another number. What is not of this rank's
rows is held against the other ranks'; what is, was followed from the batch, or is held against the
forms that a whole batch gives (by NumPy, or in a model).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Literal, final

import torch

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import BACKWARD, OUTPUT_AT, TrainingCall, call_at
from dream.adapters.pytorch.loss.coupling.forms import FORMS, form_of
from dream.adapters.pytorch.loss.coupling.lineage import Lineage
from dream.adapters.pytorch.loss.coupling.origins import MixedRows
from dream.adapters.pytorch.loss.coupling.unconnected_terms import FIGURES, UnconnectedTerms
from dream.adapters.pytorch.loss.graph_search import FAR
from dream.adapters.pytorch.loss.samples.row_dims import takes_one
from dream.adapters.pytorch.loss.samples.single_sample_losses import OF_SINGLES, SingleSampleLosses
from dream.adapters.pytorch.loss.terms import COUNTED, Term
from dream.adapters.pytorch.private import saved, shape_of, to_local
from dream.collectives import Communicator

At = int | Literal["gone", "one", "unknown"]
"""The dim of the samples; gone where they were reduced, one where one of them was taken."""

_LOOKS = 8
"""Backward passes that are looked at, from the first, and from each that has another structure."""
_FEW = 4
"""Of those that are looked at later on, now and then."""
_AGAIN = 8
"""How often a structure that is new has them look again."""
_SLOTS = 12
"""Constants of each sort that are told."""
_SIDES = {
    "MulBackward0": ("self", "other"), "DivBackward0": ("self", "other"),
    "DotBackward0": ("self", "tensor"), "MvBackward0": ("self", "vec"),
}  # fmt: skip
_NUMBERS = {
    "ClampBackward1": ("min", "max"), "ClampMinBackward0": ("min",), "ClampMaxBackward0": ("max",),
    "PowBackward0": ("exponent",), "HuberLossBackward0": ("delta",),
    "SmoothL1LossBackward0": ("beta",),
}  # fmt: skip
"""Numbers that a script may have read off its batch."""
_TURNS = {"TransposeBackward0", "PermuteBackward0", "TBackward0"}
_VIEWS = {
    "SelectBackward0", "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "ViewBackward0",
    "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0",
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Constant:
    """What a node keeps that has no graph. rows: its dim of this rank's rows; None for none of
    them; unknown where sizes do not tell."""

    name: str
    value: torch.Tensor
    rows: int | Literal["unknown"] | None


def constants_of(root: Any, share_rows: int, read: set[Any]) -> list[Constant]:
    """The constants between a loss and the outputs it comes from. read: nodes whose divisor is
    known for what it is."""
    found: list[Constant] = []
    where: dict[Any, At] = {}
    left: list[tuple[Any, bool, bool]] = [(root, False, False)]
    for _ in range(2 * FAR):
        if not left:
            break
        node, inside, below = left.pop()
        name = node.name()
        if below:
            before = [where[each] for each in graph.operands(node) if each in where]
            where[node], worked, sizes = _samples(node, name, before, share_rows)
            if node not in read:
                found += _kept(node, name, sizes, worked, share_rows)
            continue
        if node in where or COUNTED in node.metadata:
            where.setdefault(node, "unknown")
            continue
        shape = shape_of(node)
        call = call_at(node)
        called = call is not None
        inside = inside or (called and not shape)
        if (called and shape) or name == graph.LEAF or (inside and name in graph.LAYERS):
            trained = name == graph.LEAF and isinstance(node.variable, torch.nn.Parameter)
            gathered = call is not None and call.share is None
            where[node] = "gone" if trained or gathered else _at(shape, share_rows)
            continue
        where[node] = "unknown"
        left.append((node, inside, True))
        left += [(each, inside, False) for each in graph.operands(node)]
    return found


def _at(shape: Sequence[int], rows: int) -> At:
    """Where the samples are, as sizes tell."""
    for dim, size in enumerate(shape):
        if size == rows or (dim == 0 and size and size % rows == 0):
            return dim
    return "unknown"


def _samples(node: Any, name: str, before: list[At], rows: int) -> tuple[At, At, Sequence[int]]:
    """Where the samples are in what a node made, and in what it worked on; and the sizes of that.
    before: where they are in its operands."""
    shape = shape_of(node)
    dims = [each for each in before if isinstance(each, int)]
    at: At = "unknown" if not before or "unknown" in before else dims[0] if dims else "gone"
    if "one" in before and not dims:
        several = before.count("one") > 1 and name in graph.ADD | graph.STACK
        at = "gone" if several else "one"
    whole = _whole(node, name)
    if whole is not None:
        if isinstance(at, int) and at >= len(whole):
            at = "unknown"
        made = "gone" if not shape and at != "one" else at
        return made, at, whole
    if at == "one":
        return at, at, shape
    if not shape:
        view = name in _VIEWS and at != "gone"  # of the only row of a share
        taken: At = "one" if takes_one(node, name) == at else "unknown" if view else "gone"
        return taken, taken, shape
    if isinstance(at, int):
        at = _moved(node, name, at, shape, rows)
    return at, at, shape


def _whole(node: Any, name: str) -> tuple[int, ...] | None:
    """The sizes of what a node makes a loss, or a product, of; None for others."""
    if saved(node, "reduction") is not None:
        given = saved(node, "self")
    elif name == "DotBackward0":
        kept = _values(node, name)
        given = kept[0] if kept else None
    else:
        return None
    return tuple(given.shape) if isinstance(given, torch.Tensor) else None


def _moved(node: Any, name: str, at: int, shape: Sequence[int], rows: int) -> At:
    """Where the samples are in what a node made. at: where they were."""
    reduction = graph.reduction_at(node, name)
    if reduction is not None:
        if at in reduction.dims:
            return "gone"
        kept = len(shape) == len(reduction.sizes)
        return at if kept else at - sum(dim < at for dim in reduction.dims)
    if name in _TURNS:
        alike = [dim for dim, size in enumerate(shape) if size and size % rows == 0]
        return alike[0] if len(alike) == 1 else "unknown"
    if takes_one(node, name) == at and rows > 1:
        return "one"
    fits = at < len(shape) and shape[at] and shape[at] % rows == 0
    return at if fits else "unknown"


def _kept(node: Any, name: str, sizes: Sequence[int], at: At, rows: int) -> Iterable[Constant]:
    """The constants that a node keeps. sizes: of what it worked on, whose samples are at `at`."""
    for value in (*_values(node, name), *_subtracted(node, name)):
        if to_local(value) is not value or value.is_sparse or value.dtype == torch.bool:
            continue
        if not value.dtype.is_floating_point and value.dim():
            continue
        dims = len(value.shape)
        if at == "gone" or (not dims and at != "one"):
            yield Constant(name, value, None)
        elif not isinstance(at, int) or name == "MvBackward0":
            yield Constant(name, value, "unknown")
        else:
            dim = at - len(sizes) + dims
            if dim >= 0 and (value.shape[dim] != 1 or rows == 1):
                yield Constant(name, value, dim)
            elif rows in value.shape and sizes[at] != rows:
                yield Constant(name, value, "unknown")
            else:
                yield Constant(name, value, None)


def _values(node: Any, name: str) -> list[torch.Tensor]:
    ways = [after for after, _ in node.next_functions]
    names: list[str] = []
    if name in _SIDES:
        if len(graph.operands(node)) == 1:
            names = [each for each, way in zip(_SIDES[name], ways, strict=False) if way is None]
    elif graph.is_loss(name):
        names = [each for each, way in zip(("self", "target"), ways, strict=False) if way is None]
        names += ["weight", "pos_weight"]
        if len(ways) == 1:
            names.append("target")
    try:
        kept = [saved(node, each) for each in names]
    except RuntimeError:  # freed by a backward before
        return []
    numbers = [saved(node, each) for each in _NUMBERS.get(name, ())]
    return [each.detach() for each in kept if isinstance(each, torch.Tensor)] + [
        torch.tensor(each, dtype=torch.float64) for each in numbers if isinstance(each, float)
    ]


def _subtracted(node: Any, name: str) -> list[torch.Tensor]:
    """Of an error by hand, the targets: what an output has more than the error."""
    ways = graph.operands(node)
    if name not in ("PowBackward0", "AbsBackward0", "MulBackward0") or not ways:
        return []
    difference = ways[0]
    error, below = saved(node, "self"), graph.operands(difference)
    if difference.name() not in ("SubBackward0", "RsubBackward1") or len(below) != 1:
        return []
    if not isinstance(error, torch.Tensor) or (len(ways) == 2 and ways[1] is not difference):
        return []
    views, at = [], below[0]
    while call_at(at) is None:
        if at.name() not in _VIEWS or len(graph.operands(at)) != 1:
            return []
        views.append(at)
        at = graph.operands(at)[0]
    output = at.metadata.get(OUTPUT_AT)
    if output is None:
        return []
    for view in reversed(views):
        if view.name() == "SelectBackward0":
            dim, index = (graph.signed(saved(view, each)) for each in ("dim", "index"))
            output = output.select(dim, index)
        else:
            output = output.reshape(shape_of(view))
    if output.shape != error.shape or output.device != error.device:
        return []
    sign = 1.0 if difference.next_functions[0][0] is not None else -1.0
    return [output - sign * error.detach()]


def _digest(value: torch.Tensor) -> float:
    """A number that differs where values do."""
    given = value.to(device="cpu", dtype=torch.float64).reshape(-1)
    made = float(given.dot(1.0 + 0.5 * torch.arange(1.0, len(given) + 1.0).double().cos()))
    return made if isfinite(made) else -inf


@final
class ConstantLooks:
    """What the ranks find of the constants of one strategy's losses, in its first backward passes
    and when there are others. Each looks as often as the others do."""

    def __init__(self, among: Communicator, lineage: Lineage, apart: UnconnectedTerms) -> None:
        self._checked, self._among = among, among.unchecked()
        self._lineage, self._apart = lineage, apart
        self._left, self._again, self._told = _LOOKS, 0, False
        self.over = False
        self._known: set[Any] = set()
        self._singles = SingleSampleLosses()
        self._running: dict[tuple[float, int], tuple[float, int]] = {}

    def again(self) -> None:
        """On every rank: some rank has met a loss of another structure."""
        self._again += 1
        if self._again <= _AGAIN:
            self._left, self.over = _LOOKS, False

    def once_more(self) -> None:
        """On every rank, after as many passes."""
        self._left, self.over = _FEW, False

    def at(
        self, roots: Sequence[torch.Tensor], terms: Sequence[Term], armed: Sequence[TrainingCall]
    ) -> tuple[list[str], bool]:
        """What is found of losses and their terms; and whether this rank wants the others to look
        again. armed: the calls since the last backward, which every rank has."""
        shares = [call.share for call in armed if call.share is not None]
        parted = bool(shares) and (shares[0].parts > 1 or shares[0].micros > 1)
        key = (*(root.grad_fn.name() for root in roots if root.grad_fn), len(terms), parted)
        new = parted and key not in self._known
        self._known.add(key)
        if self.over:
            self._singles.settle(terms)
            return [], new and self._again < _AGAIN
        self._left -= 1
        self.over = not self._left
        if not parted:
            return [], False
        rows = shares[0].count if all(each == shares[0] for each in shares) else 0
        read = {node for term in terms for node in term.read}
        starts = [root.grad_fn for root in roots] if rows else []
        found = [each for start in starts for each in constants_of(start, rows, read)]
        found = [
            replace(each, rows="unknown")
            if each.rows is None and self._lineage.is_rows(each.value)
            else each
            for each in found
        ]
        alike = [each for each in found if each.rows is None]
        over = [each for each in found if isinstance(each.rows, int)]
        what = "|".join(f"{c.name} {c.value.dim()} {c.rows}" for c in found)
        figures = [float(zlib.crc32(what.encode()))] if rows else [-inf]
        figures += _slots([_digest(each.value) for each in alike])
        figures += _slots([form_of(c.value, c.rows) for c in found if isinstance(c.rows, int)])
        singly = any(term.one_row for term in terms)
        met = self._lineage.met(_nodes(starts), read, singly=singly)
        figures += _by_name(met)
        figures += self._singles.figures(terms)
        figures += self._apart.figures(terms)
        sent = torch.tensor(
            [*figures, *(-x if x > -inf else x for x in figures)], dtype=torch.float64
        )
        self._checked.meet(BACKWARD)
        most: list[float] = self._among.all_reduce(sent, "max").tolist()
        pairs = [*zip(most[: len(figures)], (-x for x in most[len(figures) :]), strict=True)]
        self._apart.hear(terms, *zip(*pairs[-FIGURES:], strict=True))
        singles = pairs[-FIGURES - OF_SINGLES : -FIGURES]
        self._singles.hear(terms, *zip(*singles, strict=True))
        self._singles.settle(terms)
        if any(term.unknown for term in terms):
            return [], False
        followed = [*_of_all_rows(met, pairs[1 + 2 * _SLOTS : 1 + 3 * _SLOTS])][:1]
        if pairs[0][0] != pairs[0][1]:
            return self._once(followed), False
        said = [*self._differ(alike, pairs[1 : 1 + _SLOTS])]
        forms = [*self._have_forms(over, pairs[1 + _SLOTS : 1 + 2 * _SLOTS], pairs[0][0])]
        return said or self._once(followed or forms), False

    def _once(self, said: list[str]) -> list[str]:
        """What rows are coupled by, told once: what made it, else what it looks like."""
        told, self._told = self._told, self._told or bool(said)
        return [] if told else said

    def _differ(self, alike: list[Constant], pairs: list[tuple[float, float]]) -> Iterable[str]:
        for slot, (most, least) in enumerate(pairs):
            if most > -inf and most - least > 1e-6 * max(abs(most), abs(least)):
                yield f"{_of(alike, slot)} differs over the ranks, as what a batch gives does"

    def _have_forms(
        self, over: list[Constant], pairs: list[tuple[float, float]], structure: float
    ) -> Iterable[str]:
        for slot, (form, least) in enumerate(pairs):
            if form == -inf:
                continue
            place = (structure, slot)
            before, running = self._running.get(place, (0.0, 0))
            running = running + 1 if form == before else 1
            self._running[place] = (form, running) if form == least else (0.0, 0)
            if form and form == least and running == FORMS[form][1]:
                yield f"{_of(over, slot)} {FORMS[form][0]} over each rank's own rows"


def _of(constants: list[Constant], slot: int) -> str:
    where = f" (in {constants[slot].name})" if slot < len(constants) else ""
    return f"a constant of the loss{where}"


def _nodes(starts: Iterable[Any]) -> Iterable[Any]:
    """Those of a loss, down to the outputs it comes from."""
    left, seen = [*starts], set[Any]()
    while left and len(seen) < FAR:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            if call_at(node) is None or not shape_of(node):
                left += graph.operands(node)


def _by_name(met: Iterable[MixedRows]) -> list[float]:
    """A figure a slot, which a function's name gives it: some rank may have met less."""
    figures = [-inf] * _SLOTS
    for each in met:
        slot = _slot_of(each)
        figures[slot] = max(figures[slot], 0.0) + _digest(each.source)
    return figures


def _of_all_rows(met: Iterable[MixedRows], pairs: list[tuple[float, float]]) -> Iterable[str]:
    """On every rank alike, be it one that has met nothing there."""
    names = {_slot_of(each): f", by {each.name}" for each in met}
    for slot, (most, least) in enumerate(pairs):
        if most > -inf and most - least > 1e-6 * max(abs(most), abs(least)):
            yield f"the loss has something made of all of a share's rows{names.get(slot, '')}"


def _slot_of(mixed: MixedRows) -> int:
    return zlib.crc32(mixed.name.encode()) % _SLOTS


def _slots(figures: list[float]) -> list[float]:
    """As many figures as there are slots."""
    return (figures + [-inf] * _SLOTS)[:_SLOTS]
