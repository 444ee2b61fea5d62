"""What the loop makes of a batch's rows, and where rows meet what was made of all of them.

A weight over the batch's largest, ranks of targets, a median that hard samples are above: each is
another number on a share, and neither the graph nor the number itself tells. So in the first steps
every function that is called on a share is called on its first half too. A function of each row by
itself gives the half of what it gave; any other has mixed the rows. What comes of that is followed
to where it meets rows that are trained on, and that node is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, final

import torch

from dream.adapters.pytorch import private
from dream.adapters.pytorch.data.replicated_rows import ReplicatedRows
from dream.adapters.pytorch.loss.calls import TrainingCall
from dream.adapters.pytorch.loss.coupling.alike_rows import note_alike
from dream.adapters.pytorch.loss.coupling.halves import sorted_out, tells_nothing, try_halves
from dream.adapters.pytorch.loss.coupling.joined_batches import Written, batches_of, laid_by
from dream.adapters.pytorch.loss.coupling.kept_rows import KeptRows
from dream.adapters.pytorch.loss.coupling.known_origins import FEWEST, KnownOrigins
from dream.adapters.pytorch.loss.coupling.numbers import NumbersMet
from dream.adapters.pytorch.loss.coupling.origins import (
    ADDS_UP,
    LEAVE,
    LEFT_OUT,
    ORDERS,
    WATCHED,
    ChosenRows,
    JoinedRows,
    MixedRows,
    OfRows,
    Origin,
    called_by_dream,
    fills_rows,
    in_batch,
    is_in_place,
    is_recorded,
    leaves_of,
    node_of,
    of_torch,
    place_of,
    samples_in,
    takes_one_row,
    takes_rows,
    tensors_of,
)
from dream.adapters.pytorch.loss.coupling.row_orders import (
    in_order_of,
    met_others,
    put_in_order,
)
from dream.adapters.pytorch.loss.coupling.row_slices import (
    CUT,
    CUTS,
    RowSlices,
    chosen_in,
    parts_of_rows,
)
from dream.adapters.pytorch.loss.coupling.unconnected_terms import note_number
from dream.adapters.pytorch.randomness.current import current, same, state
from dream.adapters.pytorch.randomness.joins import joins
from dream.adapters.pytorch.randomness.rows import Place, Rows
from dream.data.partition import Share

_MET = "dream.met"
"""A key of a graph node's metadata: what its rows met."""
_MOST = 20_000
"""Calls that are followed between two backward passes: a loop may never come to one."""
_NO_BATCH = -1
"""Rows of the share that a loop holds between two passes."""
_PASSES = 3
"""Passes after which it is followed what is made until the next; longer only where it is used."""
_EARLIER = " of what earlier batches have left"
_COUNTS = {"sum", "mean", "count_nonzero", "nansum", "nanmean"}
"""What gives a count of a share, which is the global batch's in part."""


@final
class Lineage(KnownOrigins):
    """Follows the batches of one loop. wanted: whether anybody looks at what is found. alike: is
    told of what is made of rows that are no batch's. sees_all: nothing of the batch left torch."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        super().__init__()
        self._wanted = wanted
        self.alike: ReplicatedRows | None = None
        self._follows = self._awake = self.outside = self._passing = False
        self._inputs: list[MixedRows] = []
        self._inside: TrainingCall | None = None
        self._calls = self._passes = 0
        self._looked = self.sees_all = False
        self._rows: Rows | None = None
        self.kept, self._cuts, self._numbers = KeptRows(), RowSlices(), NumbersMet()
        self._written = Written()

    def begin(self, batch: object, share: Share) -> None:
        """A loader hands out a batch to train on."""
        if share.parts * share.micros < 2 or not self._wanted():
            if self.entered or self._looked:
                self.rest()
            return
        if current.is_apart() or private.compiles() or not torch.is_grad_enabled():
            self.rest()  # a graph that is compiled would be compiled again without this
            return
        if self._looked:
            self.end()
        self._rows = rows = Rows.of(share)
        self.sees_all = all(isinstance(x, (torch.Tensor, int, float)) for x in leaves_of(batch))
        self.kept.begin(tensors := in_batch(batch), share.count)
        each = samples_in(batch, share.count)
        for x in tensors:
            place = place_of(x, rows) if share.count >= FEWEST and id(x) not in each else None
            if place is not None:
                self._put(x, OfRows(share.count, place))
        self._follows = self._passing = True
        self.put()

    def wake(self, share: Share) -> None:
        """The loop has drawn rows that are no share: until the next batch what is made of them is
        followed, alone."""
        if not self._follows:
            self._rows, self._passing = Rows.of(share), True
            self._between()

    def _between(self) -> None:
        if not (self._follows or current.is_apart() or private.compiles()):
            self._awake = True
            self.put()

    def called(self, call: TrainingCall, args: Iterable[object]) -> None:
        """A distributed module is called to train: what its inputs are made of comes into the
        loss, and where it mixes rows itself."""
        if self._follows:
            self._inside = call
            origins = [self._origin(x) for x in leaves_of(args)]
            self._inputs += [each for each in origins if isinstance(each, MixedRows)]
            for x, each in zip(leaves_of(args), origins, strict=True):
                if self.alike is not None and each is not None:
                    self.alike.of_batch(x)
                if isinstance(each, OfRows) and each.place.each > 1 and not each.place.dim:
                    joins.saw(x, each.n, each.place.each if each.place.copies else 1)
            for each in origins:
                self._cuts.tell(getattr(each, "cut", ""))
            first = next((each for each in origins if isinstance(each, OfRows)), None)
            self.note_call(call, first)

    def end(self) -> None:
        """Forget what there is."""
        self._follows = self._looked = self._awake = self.sees_all = False
        self._calls, self._inside = 0, None
        self.kept.end()
        self._numbers.forget()
        self._written.forget()
        self.forget()
        self._inputs.clear()

    def rest(self) -> None:
        """Be out of the way."""
        self.end()
        self.take()

    def ended(self) -> None:
        """A pass over batches ends. After the block, whose loaders may be used on, nothing else
        would end the mode. What is made until the next one begins is no batch's."""
        if self.outside:
            self.rest()
        elif self._rows is not None and self.alike is not None:
            self._passes, self._passing = self._passes + 1, False
            if self._passes <= _PASSES or self.alike.called:
                self._between()

    def is_of_batch(self, x: torch.Tensor) -> bool:
        """Whether a batch's rows are seen to have come into it."""
        return self._origin(x) is not None or self.kept.knows(x)

    def met(
        self, nodes: Iterable[Any], read: Collection[Any], *, singly: bool = False
    ) -> list[MixedRows]:
        """What rows met at some nodes of a graph, and at the inputs of calls. read: nodes whose
        divisor is taken for a count. singly: rows are taken one by one, each for a loss. A step's
        backward passes may be several: what follows the next batch is forgotten with that."""
        self._looked = True
        at_nodes: list[MixedRows] = []
        for node in nodes:
            found = node.metadata.get(_MET)
            self._cuts.tell_at(node, singly=singly)
            if found is not None and not (node in read and found.name in _COUNTS):
                at_nodes.append(found)
        return [*{id(each.source): each for each in (*self._inputs, *at_nodes)}.values()]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, func = kwargs or {}, of_torch(func)
        name = getattr(func, "__name__", "")
        if not self._follows or is_recorded():
            made = func(*args, **given)
            if self._awake and not is_recorded():
                self._note_alike(name, tensors_of((args, given)), made, args)
            return made
        inside = self._is_inside()
        leaves = [x for x in leaves_of((args, given)) if isinstance(x, torch.Tensor)]
        if name in LEFT_OUT or (name not in WATCHED and called_by_dream()):
            return self._left_out(name, func(*args, **given), leaves, args, given, inside=inside)
        origins = {id(x): origin for x in leaves if (origin := self._origin(x)) is not None}
        of_rows = bool(origins) or self.kept.has(leaves)
        if of_rows and not inside and leaves and self._origin(leaves[0]) is None:
            self.kept.tell_written(name, leaves[0])
        if not origins:
            made = func(*args, **given)
            if not of_rows:
                note_number(made)
                self._note_alike(name, leaves, made, args)
            for x, own in self.kept.note(name, made, leaves, of_rows=of_rows):
                self._put(x, MixedRows(f"{name}{_EARLIER}", own.detach().clone()))
            return made
        self.sees_all &= name not in LEAVE
        if self.alike and is_in_place(name) and id(leaves[0]) not in origins:
            self.alike.written(leaves, 1)
        self._calls += 1
        if self._calls > _MOST:
            self.end()
            return func(*args, **given)
        if not inside:
            self._inputs += self._numbers.new(name, (args, given), leaves, self._origin)
        made = self._followed(func, name, args, given, leaves, origins, inside=inside)
        for x, own in self.kept.note(name, made, leaves, of_rows=True):
            self._put(x, MixedRows(f"{name}{_EARLIER}", own.detach().clone()))
        if inside:
            self._note_inside(tensors_of(made), leaves)
        self._numbers.note_read(name, made, origins)
        return made

    def _left_out(
        self, name: str, made: Any, leaves: list[Any], args: Any, given: Any, *, inside: bool
    ) -> Any:
        """Of what must not be called twice: gradients by rows are rows; a normalisation by the
        batch mixes them where no module that trains does it, as do gradients by how often."""
        assert self._rows is not None
        outs = tensors_of(made)
        if name == "grad":
            of = args[1] if len(args) > 1 else given.get("inputs")
            for x, by in zip(outs, leaves_of(of), strict=False):
                if not isinstance(by, torch.nn.Parameter) and x.shape[:1] == (self._rows.count,):
                    self._put(x, OfRows(self._rows.count, Place(0)))
        elif name == "batch_norm" and not inside:
            training = args[5] if len(args) > 5 else given.get("training", False)
            rows = training and any(self._origin(x) is not None for x in leaves)
            for x in outs if rows else []:
                self._put(x, MixedRows(name, x.detach()))
        elif given.get("scale_grad_by_freq") or (name == "embedding" and args[5:6] == (True,)):
            self._inputs.append(MixedRows(f"{name}(scale_grad_by_freq=True)", leaves[0].detach()))
        floors = name.startswith("clamp")  # as dream watches it: each element by itself
        origin = self._origin(leaves[0]) if floors and outs else None
        if isinstance(origin, MixedRows) or (isinstance(origin, OfRows) and origin.place.each == 1):
            self._put(outs[0], origin)
        self.kept.note(name, made, leaves, of_rows=floors and self.kept.has(leaves))
        if not self.kept.has(leaves) and all(self._origin(x) is None for x in leaves):
            self._note_alike(name, leaves, made, args)
        return made

    def _note_alike(self, name: str, leaves: list[torch.Tensor], made: Any, args: Any) -> None:
        if self.alike is not None and self._rows is not None:
            count = self._rows.count if self._passing else _NO_BATCH
            note_alike(self.alike, name, leaves, made, args, count)

    def _note_inside(self, outs: list[torch.Tensor], leaves: list[torch.Tensor]) -> None:
        """Within a model: rows that are mixed, and trained on. No list of as many as experts."""
        assert self._rows is not None
        mixed = all(isinstance(self._origin(x), MixedRows) for x in leaves)
        for x in outs if not mixed else [each for each in outs if each.dim() > 1]:
            origin = self._origin(x) if x.requires_grad else None
            if isinstance(origin, MixedRows) and origin.is_in(x, self._rows.count):
                self._inputs.append(origin)

    def _is_inside(self) -> bool:
        if self._inside is not None and self._inside.returned:
            self._inside = None
        return self._inside is not None

    def _followed(
        self, func: Any, name: str, args: Any, given: Any, leaves: list[Any],
        origins: dict[int, Origin], *, inside: bool,
    ) -> Any:  # fmt: skip
        assert self._rows is not None
        before = state()
        made = func(*args, **given)
        drawn = not same(before, state())
        outs = [x for x in tensors_of(made) if type(x) in (torch.Tensor, torch.nn.Parameter)]
        if given.get("out") is not None or is_in_place(name):
            outs = [*outs, *leaves[:1]]
            self._cuts.tell_written(name, args, origins.get(id(leaves[0])), self._rows)
            self._meet(name, outs, leaves, origins)
            if full := self._written.by(name, args, leaves, origins):
                self._put(*full)
            if name in ADDS_UP and id(leaves[0]) not in origins:
                self._put(leaves[0], MixedRows(name, leaves[0].detach().clone()))
        elif not self._meet(name, outs, leaves, origins) and outs:
            if joined := laid_by(name, args, given, leaves, origins, self.kept.has):
                self._put(outs[0], joined)
                return made
            batch = (each for each in origins.values() if isinstance(each, OfRows))
            rows = next(batch, OfRows(self._rows.count, Place(0)))
            if (ordered := put_in_order(name, args, origins, outs[0])) is not None:
                self._put(outs[0], ordered)
                return made
            if takes_one_row(name, args, of := origins.get(id(leaves[0]))):
                if getattr(of, "sorted", False):
                    self._put(outs[0], MixedRows("sort", outs[0].detach()))
                return made
            if name in CUTS and self._cut(name, args, leaves, origins, outs):
                return made
            with suppress(Exception):  # a script never fails of being looked at
                never = drawn or tells_nothing(name, args, leaves, outs, origins, rows.n, inside)
                tried = None if never else partial(try_halves, func, args, given)
                found = sorted_out(name, tried, outs, origins, rows)
                for x, origin in zip(outs, found, strict=True):
                    if origin is not None:
                        self._put(x, in_order_of(origin, origins) or origin)
        return made

    def _cut(
        self, name: str, args: Any, leaves: list[Any], origins: dict[int, Origin], outs: list[Any]
    ) -> bool:
        """Follow parts of the rows that were cut off by their number; whether these are such."""
        of = origins.get(id(leaves[0]))
        if isinstance(of, JoinedRows):
            parts = batches_of(name, leaves[0], of, outs)
        elif isinstance(of, OfRows) and self._rows is not None:
            parts = parts_of_rows(name, args, leaves[0], of, outs, self._rows)
        else:
            return False
        for x, each in zip(outs, parts or (), strict=False):
            if isinstance(of, JoinedRows) or not of.place.dim or isinstance(each, OfRows):
                self._put(x, each)
            if isinstance(each, ChosenRows) and each.cut and (node := node_of(x)) is not None:
                private.note(node, CUT, each.cut)
                if self._is_inside():
                    self._cuts.tell(each.cut)
        return parts is not None

    def _meet(
        self, name: str, outs: list[torch.Tensor], leaves: list[Any], origins: dict[int, Origin]
    ) -> bool:
        """Follow what was made of all rows, or of chosen ones; whether any of that was there."""
        mixed = [o for o in origins.values() if isinstance(o, MixedRows)]
        chosen = [o for o in origins.values() if isinstance(o, ChosenRows)]
        order = [x for x in leaves if getattr(origins.get(id(x)), "order", False)]
        if order and not takes_rows(name, leaves, origins) and name not in ORDERS:
            if all(x.dtype == torch.int64 for x in outs):  # inverted, or brought to a device
                for x in outs:
                    whole = x.numel() == order[0].numel()  # else the first ones of all rows
                    self._put(x, origins[id(order[0])] if whole else MixedRows("argsort", x))
                return True
            mixed.append(MixedRows("argsort", order[0]))
        if others := met_others(name, leaves, origins):
            mixed.append(others)
        if mixed:
            constant = [o for x in leaves if not x.requires_grad
                        if isinstance(o := origins.get(id(x)), MixedRows)]  # fmt: skip
            meets = bool(constant) or len(mixed) < len(origins)
            self._mix([*constant, *mixed][0], outs, meets=meets)
        elif chosen and (chosen[0].cut or not fills_rows(name, leaves, origins)):
            for x in outs:
                self._put(x, chosen_in(name, x, chosen[0], self._rows))
        return bool(mixed or chosen)

    def _mix(self, mixed: MixedRows, outs: list[torch.Tensor], *, meets: bool) -> None:
        for x in outs:
            self._put(x, mixed)
            if meets and (node := node_of(x)) is not None:
                private.note(node, _MET, mixed)
