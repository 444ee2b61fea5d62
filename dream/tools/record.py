"""Ask ranks to be recorded, and read what they leave behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, final

from dream.cluster.settings import OBSERVER
from dream.files.whole import write_whole
from dream.tools import machine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


SEEN = (
    "Seen are backward() from a number, a GradientTape's gradient() of one, strategy.train_step, "
    "and Keras's fit and train_on_batch."
)
"""Which steps are recorded, for people."""
NO_BLOCK = (
    "The script entered no block, or one in which no framework was imported. Put what trains into "
    '`with dream.strategy("mirrored"):`.'
)
_OBSERVER = "dream.tools.recorder:begin"
Change = Literal["no dropout", "fixed statistics", "alike", "reordered", "nudged", "plain"]

"""no dropout: none is dropped. fixed statistics: BatchNorm normalises by its running statistics.
alike: all ranks draw the same random numbers. reordered: the model works on the parts of a batch at
once, one part's samples behind the other's. nudged: a model's parameters begin one rounding away.
plain: the block does nothing."""


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What a rank is to record of its training.

    folder: where the record goes. steps: after how many the script ends.

    parts: in how many parts the model works on each batch, one after the other.

    """

    folder: Path
    steps: int
    changes: tuple[Change, ...] = ()
    parts: int = 1

    @property
    def environ(self) -> dict[str, str]:
        """The environment that has a rank recorded so."""
        words = json.dumps(asdict(self) | {"folder": str(self.folder)})
        return {OBSERVER: f"{_OBSERVER} {words}"}

    @classmethod
    def of(cls, text: str) -> RecordRequest:
        said = json.loads(text)
        return cls(Path(said["folder"]), said["steps"], tuple(said["changes"]), said["parts"])


@dataclass(frozen=True, slots=True)
class StepPace:
    """When a rank took its steps, and what they took beside time.

    first_step: seconds since 1970; clocks: when each step was told of, by a clock that all ranks
    of a machine share; sent: bytes over sockets in a step, the mean, None where nobody counts or
    there was but one; entered_bytes: resident when the first block was entered; peak_bytes: the
    most ever.
    """

    first_step: float = 0.0
    clocks: Sequence[float] = ()
    sent: float | None = None
    entered_bytes: int = 0
    peak_bytes: int = 0


@final
class Clock:
    """Notes when steps are taken, and makes a `StepPace` of that."""

    def __init__(self) -> None:
        self._entered = 0
        self._first = 0.0
        self._clocks: list[float] = []
        self._sent: dict[int, int | None] = {}
        """By step: between two of them lies what so many steps send, wherever in a step it is told
        of, and nothing of what comes before the training or behind it."""

    def entered(self) -> None:
        self._entered = self._entered or machine.resident_bytes()

    def step(self) -> None:
        self._clocks.append(time.monotonic())
        done = len(self._clocks)
        self._first = self._first or time.time()
        if done & (done - 1) == 0:  # 1, 2, 4, ...: to look takes a while
            self._sent[done] = machine.bytes_sent()

    def pace(self) -> StepPace:
        """Until now."""
        return StepPace(
            self._first, tuple(self._clocks), self._each(), self._entered, machine.peak_bytes()
        )

    def _each(self) -> float | None:
        last = max(self._sent, default=1)
        before, after = self._sent.get(1), self._sent.get(last)
        return (
            None if before is None or after is None or last == 1 else (after - before) / (last - 1)
        )


Named = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Traits:
    """A model's traits, read at the end.

    dtype: what it computes in. trained: parameters that get gradients, as a report calls them,
    each once. draws, statistics: names of the parts that draw random numbers,
    and of those that normalise over a batch. named: what a name in its state is called in a report;
    None for what says nothing about learning.
    """

    dtype: str
    trained: Collection[str]
    draws: Sequence[str]
    statistics: Sequence[str]
    named: Named


def is_of(model: Any, kind: str) -> bool:
    """Return whether the model is of a kind, which is named by where its base class is."""
    return any(f"{base.__module__}.{base.__name__}" == kind for base in type(model).__mro__)


def samples(batch: Sequence[Any]) -> int | None:
    shape = getattr(batch[0], "shape", None) if batch else None
    return int(shape[0]) if shape and shape[0] is not None else None


def arrays(state: dict[str, NDArray[Any]], named: Named, prefix: str) -> dict[str, NDArray[Any]]:
    """Return what can be compared; what NumPy has no number for (bfloat16) as float32."""
    import numpy as np

    found = {}
    for name, value in state.items():
        known = named(name)
        if known is not None and value.dtype.kind not in "OSU":
            plain = value.dtype.kind in "biufc"
            found[prefix + known] = value if plain else value.astype(np.float32)
    return found


def trained_bytes(state: dict[str, NDArray[Any]], traits: Traits) -> int:
    """Of what gets gradients."""
    return sum(
        value.nbytes for name, value in state.items() if traits.named(name) in traits.trained
    )


def coarsest(names: Sequence[str]) -> str:
    known = ("bfloat16", "float16", "float32", "float64")
    return next((name for name in known if name in names), "float32")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of training on one rank.

    loss: this rank's. weight: what it counts for among the ranks', 1 for an equal share; None
    where the loss is the global one already.
    samples: in the model's input; glance: a number made of its first values. None: not known.
    batches: that the framework took at once, at most, before it told; the last of an epoch may be
    of fewer.
    """

    loss: float
    weight: float | None = None
    samples: int | None = None
    glance: int | None = None
    batches: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """Everything but the parameters.

    framework: empty where no block was entered; keras: whether Keras trained.
    stopped: the script was ended after so many steps, not by its own end.
    dtype: the coarsest that the models compute in.
    draws, statistics: what in the models draws random numbers, and what normalises over a batch.
    drawn: generators were seen to move while a model worked.
    gradient_bytes: of all parameters that are trained, on all ranks together.
    datasets: how many samples each data loader, or each call of fit, was given.
    staleness: of all updates, as `Staleness.to_json` tells it, where workers do not wait.
    lines: what dream said, each once.
    """

    rank: int
    world_size: int
    replicas: int
    framework: str = ""
    strategy: str = ""
    reduction: str = ""
    keras: bool = False
    stopped: bool = False
    dtype: str = "float32"
    steps: tuple[Step, ...] = ()
    draws: tuple[str, ...] = ()
    drawn: bool = False
    statistics: tuple[str, ...] = ()
    datasets: tuple[int, ...] = ()
    gradient_bytes: int = 0
    pace: StepPace = field(default_factory=StepPace)
    staleness: Mapping[str, object] | None = None
    lines: tuple[str, ...] = ()

    @property
    def batches(self) -> int:
        """In a step, the most."""
        return max((step.batches for step in self.steps), default=1)


class Ranked(Protocol):
    """Figures of a rank: a dataclass."""

    @property
    def rank(self) -> int: ...


def write(folder: Path, record: Ranked, parameters: Arrays) -> None:
    """Write both files, each all or nothing. The JSON comes last and says that the rank is done."""
    import numpy as np

    write_whole(
        folder / f"rank{record.rank}.npz",
        lambda file: np.savez(file, allow_pickle=False, **parameters),
    )
    text = json.dumps(asdict(record)).encode()  # type: ignore[call-overload]
    write_whole(folder / f"rank{record.rank}.json", lambda file: file.write(text))


def read_figures(folder: Path, rank: int) -> dict[str, Any]:
    """Read a rank's figures. Raises FileNotFoundError where it left none."""
    found: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text())
    return found


def read(folder: Path, rank: int) -> Record:
    """Read a rank's record. Raises FileNotFoundError where it left none."""
    said = read_figures(folder, rank)
    said["steps"] = tuple(Step(**each) for each in said["steps"])
    for name in ("draws", "statistics", "datasets", "lines"):
        said[name] = tuple(said[name])
    pace = said["pace"]
    said["pace"] = StepPace(**pace | {"clocks": tuple(pace["clocks"])})
    return Record(**said)


def read_parameters(folder: Path, rank: int) -> Arrays:
    import numpy as np

    with np.load(folder / f"rank{rank}.npz") as arrays:
        return dict(arrays)
