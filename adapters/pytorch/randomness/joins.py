"""Rows that a script, or a model, puts one after another: two views of a batch, or the batches of
two loaders, which a model is then called on as one. They lie view after view, and batch after
batch: what is drawn for them is too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import wraps
from itertools import groupby
from typing import Any, NamedTuple, final
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdKeyDictionary

from dream._log import logger
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.rows import Rows
from dream.adapters.pytorch.randomness.sites import is_library
from dream.data.partition import Share

_MOST = 256
"""Joins that are remembered by their sizes."""
_TIMES = 64
"""Views of a batch, at most."""
_UNKNOWN = (
    "a model is called on %d rows that were joined of %s, and several batches have as many: dream "
    "takes them for the newest, so what is drawn for them may not be that of one device"
)


Own = Callable[..., Any]


@final
class Join(NamedTuple):
    """What was joined. lengths: rows of each piece; shares: of those that a loader gave, or that
    every rank has whole. trains: a gradient goes through them. flat: they were stacked, to be made
    one dim; memory: where they lie, if turned ones would be as large: no other's later."""

    lengths: tuple[int, ...]
    shares: tuple[Share | None, ...]
    trains: bool
    flat: bool = False
    memory: StorageWeakRef | None = None


@final
class Joins:
    """What was joined of late. share_of: that of a tensor which a loader gave. newest: those of the
    batches that the loop has read last. wanted: whether
    anything is drawn for a batch's rows. used: whether anything was joined at all."""

    def __init__(self) -> None:
        self.wanted = self.used = self._joins = False
        self.share_of: Callable[[torch.Tensor], Share | None] = lambda _: None
        self.newest: Callable[[], Sequence[Share]] = tuple
        self._made: dict[int, tuple[ref[torch.Tensor], Join]] = {}
        self._sizes: dict[tuple[int, ...], Join] = {}
        self._given: dict[int, Rows | None] = {}
        self._views: dict[tuple[int, ...], set[int]] = {}
        self._seen: MutableMapping[torch.Tensor, int] = WeakIdKeyDictionary()
        self._past: dict[tuple[int, ...], int] = {}
        self._of_batches: tuple[Sequence[Share], Sequence[Share]] = (), ()
        self._told = False

    def forget(self) -> None:
        """A block begins or ends."""
        self._made.clear()
        self._sizes.clear()
        self._given.clear()
        self._views.clear()
        self._seen.clear()
        self._past.clear()
        self._of_batches = (), ()
        self.wanted = self.used = self._joins = False
        self.share_of, self.newest = lambda _: None, tuple

    def saw(self, x: torch.Tensor, count: int, views: int) -> None:
        """A model is called on so many views of `count` rows, as was seen by what comes of half of
        them: however they were joined. One: a sample's rows lie together, as is not known of what a
        model gives, whose dropout hides it."""
        if views == 1 and x.requires_grad:
            return
        self.used = True
        seen = self._views.setdefault(_key(x), set())
        if len(x) != count * count or not seen:  # as many rows as views leave a doubt
            seen.add(views)
            self._seen[x] = views

    def note(
        self, made: object, pieces: Sequence[object], *, flat: bool = False, turns: bool = False
    ) -> None:
        """`made` is these, one after another along dim 0; flat: along a dim of its own, which may
        be turned."""
        if current.thread.reads or not pieces or not isinstance(made, torch.Tensor):
            return
        given = [x for x in pieces if isinstance(x, torch.Tensor) and x.dim()]
        if len(given) < len(pieces) or any(isinstance(x, torch.nn.Parameter) for x in given):
            return
        if (rows := current.rows) is not None:
            if len(pieces) > 1:
                _note_within(rows, [len(x) for x in given], flat=flat)
            return
        self.used = self._joins = True
        parts = [part for x in given for part in self._parts_of(x)]
        lengths, shares = zip(*parts, strict=True)
        if dealt := [each for each in shares if each is not None and each.parts > 1]:
            self._of_batches = dealt, self.newest()
        if len(pieces) < 2:  # as a rank has of a list of samples, of which others have several
            return
        memory = _storage(made) if turns else None
        join = Join(lengths, shares, made.requires_grad, flat, memory)
        if not flat:
            key = id(made)
            self._made[key] = ref(made, lambda _: self._made.pop(key, None)), join
        sizes = (sum(lengths), *given[0].shape[1:])
        self._sizes.pop(sizes, None)
        self._sizes[sizes] = join  # the newest is the last
        if len(self._sizes) > _MOST:
            del self._sizes[next(iter(self._sizes))]

    def _parts_of(self, x: torch.Tensor) -> Iterator[tuple[int, Share | None]]:
        join = self._itself(x)
        if join is None:
            yield len(x), self.share_of(x)
        else:
            yield from zip(join.lengths, join.shares, strict=True)

    def shares_in(self, given: Iterable[torch.Tensor]) -> list[Share]:
        """Those of the batches which the first of these that was joined is made of, by what a
        loader gave."""
        for x in given:
            join = self._itself(x)
            shares = [s for s in (() if join is None else join.shares) if s and s.parts > 1]
            if shares:
                return shares
        return []

    def of_several(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether a call on these has rows of batches of several sizes, be they joined or not: of
        how many each is a rank's share need not show that. What a loop has made of those that it
        joined is known by no name, so it may be any. The same on every rank."""
        totals: set[int] = set()
        unknown = 0
        for x in given:
            join = self._itself(x)
            shares = (self.share_of(x),) if join is None else join.shares
            totals.update(each.total for each in shares if each is not None and each.parts > 1)
            unknown += sum(each is None for each in shares)
        if unknown and (totals or unknown > 1 or self._joins):
            dealt, newest = self._of_batches
            joined = dealt if newest == self.newest() else ()  # else of an earlier step
            totals.update(each.total for each in (*self.newest(), *joined))
        return len(totals) > 1

    def begin(self, given: Iterable[torch.Tensor], rows: Rows, others: Iterable[Rows]) -> int:
        """A call on these begins. rows: of the share that it is of; others: of the batches that the
        loop has beside it. Returns of how many pieces its rows are."""
        sizes = self._sizes
        views = self._begun(given, rows, others)
        if any(join.memory is not None for join in sizes.values()):
            self._sizes = {key: join for key, join in sizes.items() if join.memory is None}
        return views

    def _begun(self, given: Iterable[torch.Tensor], rows: Rows, others: Iterable[Rows]) -> int:
        for x in given:
            found = self.rows_of(x, rows, others)
            if found is not None:
                rows.joined.append(found)
            if len(self._given) > _MOST:
                self._given.clear()
            self._given[len(x) if x.dim() else 0] = found
            if found is not None:
                return len(found.runs)
        return 0

    def rows_of(self, x: torch.Tensor, rows: Rows, others: Iterable[Rows]) -> Rows | None:
        """The rows of a tensor that is called on, or drawn for; None where it is none that was
        joined. On a rank without rows it goes by what had such sizes before."""
        join = self._itself(x)
        if not x.dim() or (join is None and len(x) == rows.count > 0):
            return None
        key = _key(x)
        if join is None and not len(x):
            views = self._past.get(key, 0)
            found = Rows.join([rows] * views) if views else None
            return found if found is not None and not found.count else None
        share = self.share_of(x) if join is None else None
        if share is not None and share.count == len(x):
            return None
        found = self._found(x, join, [rows, *others])
        same = found is not None and {run.total for run in found.runs} == {rows.total}
        if same or (found is None and rows.count > 1):
            self._past[key] = len(found.runs) if found is not None else 0
        return found

    def _found(self, x: torch.Tensor, join: Join | None, known: Sequence[Rows]) -> Rows | None:
        views = self._views_in(x, known[0].count) if join is None else 0
        if views == 1:
            return None
        if views:
            return Rows.join([known[0]] * views)
        join = join or self._of(x)
        if join is not None:
            return self._resolved(join, known)
        return self._given.get(len(x)) if x.requires_grad else None

    def _views_in(self, x: torch.Tensor, count: int) -> int:
        """How many views this is, by what was seen of it, or of others like it; 0 if unknown."""
        seen = self._views.get(_key(x), set())
        found = {self._seen[x]} if x in self._seen else {1} if 1 in seen else seen
        return next((views for views in found if views == 1 or len(x) == views * count), 0)

    def of_length(self, length: int, rows: Rows, others: Iterable[Rows]) -> Rows | None:
        """The rows of what was joined last of those of a length; None where nothing was."""
        join = self._newest(length)
        return None if join is None else self._resolved(join, [rows, *others])

    def _newest(self, length: int) -> Join | None:
        newest = reversed(self._sizes.items())
        fits = (
            each
            for sizes, each in newest
            if sizes[0] == length and len(sizes) > 1 and each.memory is None
        )
        return next((each for each in fits if not each.trains), None)

    def _of(self, x: torch.Tensor) -> Join | None:
        """That which a tensor is of by its memory or its sizes; or by its length, where it may have
        been made of what was joined."""
        join = self._sizes.get(tuple(x.shape))
        if join is not None and join.memory is not None:
            one = max(join.lengths) == 1  # turned ones lie there too
            there = join.memory == _storage(x) and not x.storage_offset()
            if not there or (one and not self._past.get(_key(x), 1)):
                return None
        if join is not None or x.requires_grad:
            return join
        for held, each in self._made.values():
            made = held()
            if made is not None and made.data_ptr() == x.data_ptr() and sum(each.lengths) == len(x):
                return each
        return self._newest(len(x))

    def _itself(self, x: torch.Tensor) -> Join | None:
        held, join = self._made.get(id(x), (None, None))
        return join if held is not None and held() is x else None

    def _resolved(self, join: Join, known: Sequence[Rows]) -> Rows | None:
        """Find which rows each piece has; None where one has none of a batch, or every rank has all
        of each: as an index of two rows, beside others that a model joined in an evaluation."""
        runs = []
        for length, share in zip(join.lengths, join.shares, strict=True):
            fits = [each for each in known if each.count == length]
            if share is not None and share.count == length:
                fits = [Rows.of(share)]
            if not fits:
                return None
            if len({each.total for each in fits}) > 1:
                self._tell(join)
            runs.append(fits[0])
        if all(run.count == run.total for run in runs):
            return None
        return Rows.join(runs, flat=join.flat)

    def _tell(self, join: Join) -> None:
        if not self._told:
            self._told = True
            parts = " and ".join(str(n) for n, _ in groupby(join.lengths))
            logger.info(_UNKNOWN, sum(join.lengths), parts)


def _storage(x: torch.Tensor) -> StorageWeakRef | None:
    try:
        return StorageWeakRef(x.untyped_storage())
    except (RuntimeError, NotImplementedError):  # it has none of its own
        return None


def _key(x: torch.Tensor) -> tuple[int, ...]:
    return (x.dim(), *x.shape[1:])


def _note_within(rows: Rows, lengths: Sequence[int], *, flat: bool) -> None:
    """A model has joined rows of its batch."""
    known = {each.count: each for each in (rows, *reversed(rows.joined))}
    runs = [known[n] for n in lengths if n in known]
    if len(runs) == len(lengths):
        found = Rows.join(runs, flat=flat)
        if found not in rows.joined:
            rows.joined.append(found)


joins = Joins()


def joining(name: str, own: Own) -> Own:
    """What puts tensors one after another."""
    flat = name == "stack"

    @wraps(own)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        made = own(*args, **kwargs)
        if _by_library():
            return made
        along = kwargs or (len(args) > 1 and args[1] != 0)
        if (along and not _is_first(args, kwargs)) or torch.compiler.is_compiling():
            return made
        pieces = args[0] if args else kwargs.get("tensors")
        if isinstance(pieces, (list, tuple)):
            joins.note(made, pieces, flat=flat, turns=flat)
        return made

    return wrapped


def _by_library() -> bool:
    """Whether it is dream or torch that joins, and not the script: no batch's rows."""
    return is_library(sys._getframe(2).f_globals.get("__name__"))


def _is_first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether tensors are put one after another along dim 0."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    return dim == 0 and kwargs.get("out") is None


def repeating(name: str, own: Own) -> Own:
    """What puts a tensor several times after itself, or is to be."""
    once = -1 if name == "expand" else 1

    @wraps(own)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = own(self, *args, **kwargs)
        if kwargs or not args or torch.compiler.is_compiling():
            return made
        times = args[0] if isinstance(args[0], (tuple, list)) else args
        base = self._base
        of = base if base is not None and self.dim() and (1, *base.shape) == self.shape else self
        more = len(times) - of.dim()  # of: what x[None] is of, too, whose rows are repeated so
        if more == 1 and 1 < times[0] <= _TIMES and len(times) > 1:
            if times[1] == once or (name == "expand" and times[1] == len(of)):
                joins.note(made, [of] * times[0], flat=True)
        elif not more and name != "expand" and 1 < times[0] <= _TIMES:
            joins.note(made, [of] * times[0])
        return made

    return wrapped
