"""A training that nobody saved by hand, gone on with: its script runs from its top, and its loop is
gone through again without data until it comes to the place of the checkpoint."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Self, final

from dream._errors import ConfigurationError
from dream._log import logger
from dream.adapters.pytorch.checkpoint.loop_form import enclosing_targets, index_of
from dream.adapters.pytorch.checkpoint.passes import Reading
from dream.adapters.pytorch.checkpoint.place import Place
from dream.adapters.pytorch.checkpoint.variables import Told, Variables
from dream.adapters.pytorch.hooks import Patches

LINES = (
    "    at = strategy.load(model=model, optimizer=optimizer, scheduler=scheduler, data=loader)\n"
    "    for epoch in range(at.epoch if at else 0, EPOCHS):\n"
    "        for i, batch in enumerate(loader, at.batch if at and epoch == at.epoch else 0):"
)
_GONE_THROUGH = (
    "the script goes through its %d finished epochs without data before training goes on: what it "
    "prints of them, or writes by other means than torch.save, is of nothing"
)
_BEGIN_ANEW = (
    "variables of the script's that begin anew, as they were each rank's own or have no place yet: "
    "%s"
)
Restore = Callable[[Any, Callable[[], Iterator[Any]]], Iterator[Any]]


def cannot_go_on(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"This script cannot be gone on with as it stands: {why}. Received: a checkpoint of its "
        "training, which is as it was, as are the files it saved. Have it load the checkpoint, in "
        f"three lines:\n{LINES}"
    )


@final
class Replay:
    """passes: gone through so far. restore: sets everything that trains as the checkpoint has it,
    and begins the pass."""

    def __init__(self, place: Place, variables: Variables, ranks: int, restore: Restore) -> None:
        self.place, self._variables, self._ranks, self._restore = place, variables, ranks, restore
        self.passes = 0
        self._patches = Patches()
        self._patches.replace(builtins, "enumerate", _Enumerate)
        if place.passes:
            logger.info(_GONE_THROUGH, place.passes)

    def over(self) -> None:
        self._patches.restore()

    def iterate(
        self, loader: Any, number: int | None, begin: Callable[[], Iterator[Any]],
        reading: Reading, *, trains: bool,
    ) -> Iterator[Any]:  # fmt: skip
        """The batches of a loader: of the one that is trained on none, until its place comes; of
        others the first, which is enough for what is made of them to have its form."""
        if not trains or number != self.place.loader:
            return islice(begin(), 1)
        return reading.begins(_Replayed(self, loader, begin, reading))

    def first(
        self, loader: Any, begin: Callable[[], Iterator[Any]], reading: Reading
    ) -> Iterator[Any]:
        """A pass over the loader that is trained on is asked for its first batch."""
        if not reading.asked():
            return begin()  # a look at a batch: what trains by hand is never saved
        self._variables.began(reading.form)
        if self.passes < self.place.passes:
            self._variables.set(self.place.history[self.passes])
            self.passes += 1
            return iter(())
        self._check(reading)
        begun = self._restore(loader, begin)
        missing = self._variables.set(self.place.variables)
        if lost := sorted({*missing, *self.place.unalike}):
            logger.info(_BEGIN_ANEW, ", ".join(lost))
        self.over()
        return begun

    def _check(self, reading: Reading) -> None:
        """Whether the loop stands where it stood. Nothing has been changed yet."""
        form, place = reading.form, self.place
        if form.why:
            raise cannot_go_on(form.why)
        if form.site != [*map(list, place.site)]:
            raise cannot_go_on(f"its loop is in {_told(form.site)}, and was in {_told(place.site)}")
        counts = reading.counts()
        if [hasattr(each, "offset") for each in counts] != [True] * (place.index is not None):
            raise cannot_go_on("what counts its batches cannot be set to where it stood")
        self._check_variables({n for frame in form.frames for n in enclosing_targets(frame)})
        for each in counts:
            each.offset = (place.index or 0) - index_of(each)

    def _check_variables(self, stepped: set[str]) -> None:
        """stepped: those that the loops around it step by themselves."""
        place = self.place
        now = self._variables.told_now(place.variables)
        others = {key for key, said in place.variables.items() if now.get(key) != said}
        for key in sorted(others):
            if key[1] in stepped:
                raise cannot_go_on(f"{key[1]!r} of the loop around it is another than it was")
            kind, *rest = place.variables[key]
            counts = kind == "value" and isinstance(rest[0], int)
            if key in place.given and counts and self._ranks != place.ranks:
                raise cannot_go_on(
                    f"{key[1]!r}, which the function of its loop was given, is another on "
                    f"{self._ranks} ranks than on {place.ranks}"
                )

    @property
    def history(self) -> list[Told]:
        return [*self.place.history]


@final
class _Replayed:
    """Stands for the iterator of a pass, of which it is not known yet what it yields."""

    def __init__(
        self, replay: Replay, loader: Any, begin: Callable[[], Iterator[Any]], reading: Reading
    ) -> None:
        self._first = lambda: replay.first(loader, begin, reading)
        self._loader = loader
        self._inner: Iterator[Any] | None = None

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._inner is None:
            self._inner = self._first()
        return next(self._inner)


class _Enumerate(enumerate[Any]):
    """`enumerate` that can go on counting from elsewhere: `offset` further on."""

    offset = 0

    def __next__(self) -> Any:
        index, item = super().__next__()
        return index + self.offset, item

    def __reduce__(self) -> Any:
        kind, (inner, index) = super().__reduce__()  # type: ignore[misc]
        return kind, (inner, index + self.offset)


_Enumerate.__name__ = _Enumerate.__qualname__ = "enumerate"


def _told(site: Any) -> str:
    return ", ".join(f"{name} (line {line} of it)" for name, line in site)
