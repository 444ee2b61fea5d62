"""The outcome of a cell: what each rank left behind, and figures of several rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from dream.parameter_server.staleness import Staleness
from dream.tools import record
from dream.tools.verify.runs import Broken, Ran

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Parameters = Mapping[str, NDArray[np.float32]]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoundSpread:
    """The median of all rounds between the least and the most of any."""

    low: float
    median: float
    high: float
    rounds: int

    def overlaps(self, other: RoundSpread) -> bool:
        """Return whether some round of one reads as some round of the other might have. A single
        round has no spread: nothing is told apart by it, nor by what was not read, which is nan."""
        if min(self.rounds, other.rounds) < 2:
            return True
        return not (self.low > other.high or other.low > self.high)


def spread(values: Iterable[float]) -> RoundSpread:
    """Of at least one value."""
    found = sorted(values)
    return RoundSpread(found[0], median(found), found[-1], len(found))


def number(value: float) -> str:
    """For people: whole where it is large; empty where nothing was read."""
    if value != value:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def best(
    items: Iterable[T], of: Callable[[T], RoundSpread], *, most: bool
) -> tuple[T, list[T]] | None:
    """Return the item of the best median, and the others that cannot be told from it, best first.

    most: whether more is better. None where there are no items of which something was read.
    """
    read = [item for item in items if of(item).median == of(item).median]
    ordered = sorted(read, key=lambda item: of(item).median, reverse=most)
    if not ordered:
        return None
    first, *others = ordered
    return first, [item for item in others if of(item).overlaps(of(first))]


@dataclass(frozen=True, slots=True)
class RankRecord:
    """A rank's figures.

    losses: global, one per epoch, or of a script one per step; scores: on the test set, one per
    epoch, none for a script; epoch_seconds: from the first step's beginning to the end of each
    epoch. window: when the warm-up ended and the training, by a clock that all ranks share, and the
    samples that the whole job trained on between; of a script, steps. first_step: seconds since
    1970. steps: of this rank in all; step_seconds, sent_per_step (bytes over sockets, None where
    nobody counts): after the warm-up.
    feeding_seconds, reducing_seconds: a step's parts, as in probe.Parts; None where they were not
    read. gradient_bytes: of all gradients together. imported_bytes: resident once the framework was
    imported; peak_bytes: the most that was ever. digest: of the parameters, equal where they are
    bit-identical. staleness: of all updates, as `Staleness.to_json` tells it; None where none is.
    """

    rank: int
    world_size: int
    replicas: int
    device: str
    reduction: str
    losses: list[float]
    scores: list[float]
    epoch_seconds: list[float]
    window: tuple[float, float, float]
    steps: int
    step_seconds: float
    sent_per_step: float | None
    feeding_seconds: float | None
    reducing_seconds: float | None
    gradient_bytes: int
    first_step: float
    imported_bytes: int
    peak_bytes: int
    digest: str
    staleness: Mapping[str, object] | None = None

    @property
    def score(self) -> float | None:
        """The last."""
        return self.scores[-1] if self.scores else None


def read_record(folder: Path, rank: int) -> RankRecord:
    """Read what a rank left. Raises FileNotFoundError where it left nothing."""
    said = record.read_figures(folder, rank)
    return RankRecord(**said | {"window": tuple(said["window"])})


def digest(parameters: Parameters) -> str:
    """Digest names, shapes, dtypes and bits."""
    state = sha256()
    for name, value in sorted(parameters.items()):
        state.update(f"{name} {value.shape} {value.dtype.str}".encode())
        state.update(value.tobytes())
    return state.hexdigest()


@dataclass(frozen=True, slots=True)
class Finished:
    """Every rank left its record. records, parameters: in rank order; start_up: seconds from the
    command to the end of the first step on the slowest rank; again: the same in later rounds;
    ran: as `dream verify` sees it, of a script."""

    records: tuple[RankRecord, ...]
    parameters: tuple[Parameters, ...]
    start_up: float
    again: tuple[Finished, ...] = ()
    ran: Ran | None = None

    @property
    def first(self) -> RankRecord:
        return self.records[0]

    @property
    def batches(self) -> int:
        """In a step, the most."""
        return 1 if self.ran is None else self.ran.first.batches

    @property
    def rounds(self) -> tuple[Finished, ...]:
        """All of them; each stands for itself."""
        return (replace(self, again=()), *self.again)

    @property
    def peak_bytes(self) -> int:
        """Of the largest rank."""
        return max(record.peak_bytes for record in self.records)

    @property
    def own_bytes(self) -> int:
        """The same beyond what the framework's import takes."""
        return max(record.peak_bytes - record.imported_bytes for record in self.records)

    def over_rounds(self, figure: Callable[[Finished], float]) -> RoundSpread:
        return spread(figure(each) for each in self.rounds)

    @property
    def rate(self) -> float:
        """Samples per second of all replicas together, by the clock of the whole job; nan where
        the warm-up was all there is."""
        started = min(record.window[0] for record in self.records)
        ended = max(record.window[1] for record in self.records)
        done = self.first.window[2]
        return done / (ended - started) if ended > started and done > 0 else float("nan")

    @property
    def speed(self) -> RoundSpread:
        """`rate`."""
        return self.over_rounds(lambda each: each.rate)

    @property
    def staleness(self) -> Staleness | None:
        """Of the first round's updates."""
        told = self.first.staleness
        return None if told is None else Staleness.of_json(told)

    def seconds_to(self, score: float) -> float:
        """From the beginning of the first step until rank 0 first read a test score that is as
        good, at the end of an epoch; infinite where it never did."""
        read = zip(self.first.scores, self.first.epoch_seconds, strict=True)
        return next((seconds for found, seconds in read if found >= score), inf)

    @property
    def memory(self) -> RoundSpread:
        """`own_bytes`."""
        return self.over_rounds(lambda each: each.own_bytes)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot run here. install: what to run."""

    reason: str
    install: str


Outcome = Finished | Broken | Skipped


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Sum up all rounds of a cell: the first that did not finish, else all of them."""
    finished = [each for each in outcomes if isinstance(each, Finished)]
    for number, each in enumerate(outcomes, 1):
        if isinstance(each, Broken) and number > 1:
            return replace(each, reason=f"In round {number}: {each.reason}")
        if not isinstance(each, Finished):
            return each
    return replace(finished[0], again=tuple(finished[1:]))
