"""A training that its script loads nothing for, kept between the items of its outermost loop."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from types import FrameType
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary

from dream._log import Once, logger
from dream.checkpoint.untouched.variables import Variables, VariablesOfALoop, is_of_a_script
from dream.data import tracked
from dream.data.position import Track

if TYPE_CHECKING:
    from dream._strategy import Strategy
    from dream.checkpoint.checkpointer import Parts
    from dream.checkpoint.content import CheckpointContent
    from dream.checkpoint.training import TrainingCheckpoints
    from dream.checkpoint.untouched.trained import Trained
    from dream.data.tracked import Tracked

LOOP = "loop"
"""Where a checkpoint says, among its extras, which loop it is of, and what that had by itself."""
_KEPT = (
    "--checkpoint keeps this training whenever an item of its loop is over (%s, in line %d), and a "
    "job that is started again goes on with the next one, with the loop's own plain variables%s. "
    "To have it saved within an epoch, too, load before the loop, and begin there:\n%s"
)
UNSAVED = (
    "--checkpoint keeps nothing of this training, which began without strategy.load%s: a job that "
    "is started again begins anew. To have it saved, and gone on with, load before the loop, and "
    "begin there:\n%s\nWhat the script counts by itself begins anew: see at.step and at.batch."
)
"""Which is said with why, and the lines that it lacks."""
_NO_LONGER = (
    "this training is not kept any more, and a job that is started again goes on with what was "
    "kept before: %s"
)
_AGAIN = (
    "the checkpoint is of another loop (%s), so what comes before that one is trained again, and "
    "not kept"
)
_APART = "ranks have other values of %s, variables of the loop: who goes on has those of rank 0"
_WENT_ON = "training goes on with item %d of the loop in line %d%s"
_ANOTHER = (
    "a job keeps one training by itself, and this is another one of the same loop (in line %d): a "
    "job that is started again trains it from its beginning"
)
_FEW = 64
_passed: set[str] = set()
"""Loops of this process that have begun."""
_kept: set[str] = set()
_trainings: WeakKeyDictionary[Strategy, UntouchedTraining] = WeakKeyDictionary()


def watch(strategy: Strategy, trained: Trained) -> None:
    """Have what trains in a strategy's block be kept, where its script does not say what it is."""
    _trainings[strategy] = UntouchedTraining(strategy, trained)


def training_of(strategy: Strategy | None) -> UntouchedTraining | None:
    """Return the one that is kept in a strategy's block; None where nobody asked for it."""
    return None if strategy is None else _trainings.get(strategy)


@final
class _Steps:
    """Counts the updates of a process.

    made: updates of all trainings of this process, and of what they went on from.
    """

    made = 0


@final
class UntouchedTraining:
    """Keeps one strategy's training. Every rank calls each method at the same places."""

    def __init__(self, strategy: Strategy, trained: Trained) -> None:
        self._strategy = strategy
        self._trained = trained
        self._looked = False
        self._found: CheckpointContent | None = None
        self._over = ""  # why nothing is kept any more
        self._kept = False
        self._reads_again = False
        self._made: Mapping[Tracked, int] = {}
        self._tell_once = Once()
        self._steps = self._updates = 0

    def begins(
        self, place: str, items: Any, frame: FrameType,
        names: tuple[Iterable[str], Iterable[str], Iterable[str]],
    ) -> tuple[int, dict[str, Any]]:  # fmt: skip
        """A loop begins. Return how many items are behind, and what its function assigns."""
        self._place, self._line, self._first = place, frame.f_lineno, _first_of(items)
        self._over, self._kept, self._waited = "", False, False
        self._trained.begin()
        told = self._trained.known
        try:
            return self._began(place, frame, names)
        finally:
            self._trained.known = told or self._kept or bool(self._over)

    def _began(
        self, place: str, frame: FrameType,
        names: tuple[Iterable[str], Iterable[str], Iterable[str]],
    ) -> tuple[int, dict[str, Any]]:  # fmt: skip
        self._steps, self._updates = self._trained.steps, self._trained.updates
        self._before, self._made = tracked.read_so_far(), {}
        self._known = named = self._trained.named(_variables(frame))
        self._variables = VariablesOfALoop(frame, *names, self._trained)
        self._form = self._trained.form(named)
        if not named.models:
            return 0, {}
        kept = self._checkpoints(named)
        if kept.by_hand:
            return 0, {}
        self._unkept = kept.unkept(named)
        if not self._looked:
            self._looked = True
            self._found = kept.newest()
            if self._found is not None and _place_of(self._found) in _passed:
                self._found = None
        _passed.add(place)
        if self._found is None:
            return 0, {}
        return self._go_on(self._found, named, kept, frame)

    def _go_on(
        self, found: CheckpointContent, named: Parts, kept: TrainingCheckpoints, frame: FrameType
    ) -> tuple[int, dict[str, Any]]:
        told = found.extra.get(LOOP)
        if told is None:
            self._stop("the folder holds a checkpoint that a script with strategy.load has saved")
            return 0, {}
        if told["place"] != self._place:
            logger.info(_AGAIN, _named(told["place"]))
            return 0, {}
        if told["first"] != self._first:
            self._stop(
                f"the loop began with {told['first']} when it was saved, and begins with "
                f"{self._first} now, as where a script goes on by itself"
            )
            return 0, {}
        kept.go_on(found, _of(named, told["data"]))
        _Steps.made = found.step
        self._begins_to_be_kept()
        self._trained.set_modes(named, told["modes"])
        own = Variables(told["own"], told["globals"], told["held"], told["anew"])
        values = self._variables.set_again(frame, own)
        names = ", ".join(sorted({*own.own, *own.globals, *own.held}))
        logger.info(
            _WENT_ON, told["behind"], self._line,
            f", with {names} as they were" if names else "",
        )  # fmt: skip
        return int(told["behind"]), values

    def is_between(self, index: int, frame: FrameType) -> None:
        """An item is over, and the next one, of that index, has not begun."""
        trained = self._trained
        if trained.steps == self._steps or self._over:
            return
        self._steps = trained.steps
        _Steps.made += trained.updates - self._updates
        self._updates = trained.updates
        if self._found is not None or self._is_by_hand:
            return
        waits = self._waits_for_another_item()
        if not self._kept:
            # Whether a loader is gone yet may be otherwise on each rank: all wait where one does.
            if self._known.models and self._checkpoints(self._known).of_any_rank("." * waits):
                return
            self._begin_to_keep(index, frame)
        kept = self._strategy._checkpoints
        if kept is not None and not self._over:
            kept.item_is_over(_Steps.made, lambda: self._now(index, frame))

    def _waits_for_another_item(self) -> bool:
        """Look at loaders that were made within the item: it is not known before the next one is
        over whether that makes its own."""
        known = {tracked.found_in(each) for each in self._known.data.values()}
        read = {t: n for t, n in tracked.read_so_far().items() if t not in known}
        mine = {t: n for t, n in read.items() if n > self._before.get(t, 0)}
        self._reads_again = any(mine.get(t, 0) > n for t, n in self._made.items())
        waits = bool(mine) and not self._waited
        self._made, self._waited = mine, self._waited or waits
        return waits

    def _begin_to_keep(self, index: int, frame: FrameType) -> None:
        """Say what is kept, or why nothing is."""
        if self._now(index, frame) is None:
            return
        self._begins_to_be_kept()
        now = self._variables.read(frame)
        names = ", ".join(sorted({*now.own, *now.globals, *now.held}))
        said = f" ({names})" if names else ""
        logger.info(_KEPT, _named(self._place), self._line, said, self._trained.lines())

    def _begins_to_be_kept(self) -> None:
        self._found, self._kept = None, True
        self._trained.known = True
        _kept.add(self._place)

    def _now(self, index: int, frame: FrameType) -> tuple[Parts, Mapping[str, Any]] | None:
        """Return all that is to be kept; None where it cannot be, which is said."""
        if not self._known.models:
            self._stop("no variable names its model as the loop begins")
            return None
        kept = self._checkpoints(self._known)
        read = {t for t, n in tracked.read_so_far().items() if n > self._before.get(t, 0)}
        loaders = [n for n, each in self._known.data.items() if tracked.found_in(each) in read]
        parts = _of(self._known, loaders)
        if why := kept.of_any_rank(self._why_not(parts, read, frame)):
            self._stop(why)
            return None
        now = deepcopy(vars(self._variables.read(frame)))
        del now["changed"]
        if apart := kept.apart(_digests(now)):
            self._tell_once(_APART % ", ".join(apart))
        where = {"place": self._place, "first": self._first, "behind": index, "data": loaders}
        return parts, {LOOP: {**where, **now, "modes": self._trained.modes(parts)}}

    def _why_not(self, named: Parts, read: Collection[Tracked], frame: FrameType) -> str:
        """Return what cannot be gone on with, in words; nothing where all can. read: where loaders
        stand that were read in the loop."""
        if self._reads_again:
            return "a loader was made in one item of the loop, and read in another"
        if missing := self._trained.unnamed(named):
            return f"no variable names {', '.join(missing)} as the loop begins"
        if any(isinstance(track, Track) and not track.at_rest for track in read):
            return "an item ends within a pass over a loader"
        if self._trained.form(named) != self._form:
            return "a model or an optimizer has other parts than as the loop began"
        if self._trained.left_over(named):
            return "gradients of one item are left to the next"
        if unkept := self._unkept():
            return f"{', '.join(unkept)} trains on beside what can be kept"
        if changed := self._variables.read(frame).changed:
            return f"{', '.join(changed)} changes from item to item, and is no plain value"
        return ""

    def is_over(self) -> None:
        """The loop has ended, or was left."""
        trains = self._trained.steps > self._steps or self._made
        if trains and not (self._kept or self._over or self._found or self._is_by_hand):
            self._stop("its loop was over before anything could be")

    def _stop(self, why: str) -> None:
        if self._kept:
            logger.info(_NO_LONGER, why)
        else:
            logger.info(UNSAVED, f" ({why})", self._trained.lines())
        self._over = why
        self._trained.known = True

    @property
    def _is_by_hand(self) -> bool:
        kept = self._strategy._checkpoints
        return kept is not None and kept.by_hand

    def _checkpoints(self, named: Parts) -> TrainingCheckpoints:
        return self._strategy._checkpoints_of(named.first_model)


def tell_of_another(place: str, line: int) -> None:
    """A loop begins again: where its first training was kept, say that this one is not."""
    if place in _kept:
        _kept.remove(place)
        logger.info(_ANOTHER, line)


def _named(place: str) -> str:
    """Return how a loop is called in a line."""
    owner, _, number = place.rpartition(" ")
    return f"loop {number} of {owner}"


def _place_of(found: CheckpointContent) -> Any:
    return found.extra.get(LOOP, {}).get("place")


def _variables(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Those of the loop's function and of all that has called it, and what lists, dicts and objects
    of the script among them hold."""
    while frame is not None:
        for scope in (frame.f_locals, frame.f_globals):
            yield from [*scope.items()]
            for name, value in [*scope.items()]:
                yield from ((f"{name}.{inner}", held) for inner, held in _held_by(value))
        frame = frame.f_back


def _held_by(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, (list, tuple)):
        return [*enumerate(value)] if len(value) <= _FEW else []
    if isinstance(value, dict):
        return [*value.items()] if len(value) <= _FEW else []
    return (
        [*vars(value).items()] if is_of_a_script(type(value)) and hasattr(value, "__dict__") else []
    )


def _first_of(items: Any) -> Any:
    """Return where a range begins, and its step; a bar shows one."""
    counted = getattr(items, "iterable", items)
    return [counted.start, counted.step] if isinstance(counted, range) else None


def _of(named: Parts, read: Iterable[str]) -> Parts:
    from dream.checkpoint.checkpointer import Parts

    kept = {name: named.data[name] for name in read}
    alone = next(iter(kept.values())) if len(kept) == 1 else kept or None
    return Parts(named.models, named.optimizers, named.schedulers, alone)


def _digests(now: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    kinds = [now["own"], now["globals"], now["held"]]
    every = {name: value for kind in kinds for name, value in kind.items()}
    return {name: zlib.crc32(repr(value).encode()) for name, value in every.items()}
