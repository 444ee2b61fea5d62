"""A rank's record: what `dream verify` reads when a script has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dream.files.whole import write_whole
from dream.tools.recording.pace import Pace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


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
    pace: Pace = field(default_factory=Pace)
    staleness: Mapping[str, object] | None = None

    @property
    def batches(self) -> int:
        """In a step, the most."""
        return max((step.batches for step in self.steps), default=1)


def write(folder: Path, record: Record, parameters: Arrays) -> None:
    """The JSON comes last and says that the rank is done."""
    import numpy as np

    write_whole(
        folder / f"rank{record.rank}.npz",
        lambda file: np.savez(file, allow_pickle=False, **parameters),
    )
    text = json.dumps(asdict(record)).encode()
    write_whole(folder / f"rank{record.rank}.json", lambda file: file.write(text))


def read(folder: Path, rank: int) -> Record:
    """Raises FileNotFoundError where the rank left nothing."""
    said = json.loads((folder / f"rank{rank}.json").read_text())
    said["steps"] = tuple(Step(**each) for each in said["steps"])
    for name in ("draws", "statistics", "datasets"):
        said[name] = tuple(said[name])
    pace = said["pace"]
    said["pace"] = Pace(**pace | {"clocks": tuple(pace["clocks"])})
    return Record(**said)


def read_parameters(folder: Path, rank: int) -> Arrays:
    import numpy as np

    with np.load(folder / f"rank{rank}.npz") as arrays:
        return dict(arrays)
