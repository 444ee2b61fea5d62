"""What a checkpoint holds: arrays by name, and plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from dream._errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

BFLOAT16 = [("bfloat16", "<u2")]
"""NumPy has no such type: numbers of two bytes under this name, each the upper half of a
float32's."""
Arrays = Mapping[str, "NDArray[Any]"]
NAMES = "names"
"""The fact that says whose names a checkpoint's parameters have: "torch" or "keras"."""


@final
@dataclass(frozen=True, slots=True)
class OptimizerState:
    """An optimizer's, by its parameters' names.

    kind: its class. arrays: PARAMETER/SLOT -> array. numbers: PARAMETER/SLOT -> a plain value.
    groups: each group's parameters and hyperparameters.
    """

    kind: str
    arrays: Arrays = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Any]] = ()


@final
@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a training whose ranks step alone, each with a state of its own.

    arrays: RANK/model/NAME and RANK/optimizer/PARAMETER/SLOT where they are apart, and what they
    have in common beside. schedule: when they come together. random: each one's generators.
    """

    count: int
    schedule: Mapping[str, Any]
    random: Sequence[Mapping[str, Any]] = field(repr=False)
    arrays: Arrays = field(default_factory=dict, repr=False)


@final
@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """All that one checkpoint holds.

    step: updates made so far. models: NAME -> arrays; "" where there is one model. data: where
    training stands in it. random: the generators. facts: who wrote it. layers: NAME -> the model's
    layers in words of every framework, or why there are none. dtypes: NAME -> the type of each
    array in training. runs: wandb's and mlflow's ids, where one was under way. replicas: where each
    rank has its own state, of which the others here are the mean.
    """

    step: int
    models: Mapping[str, Arrays] = field(repr=False)
    optimizers: Mapping[str, OptimizerState] = field(default_factory=dict, repr=False)
    schedulers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    data: Mapping[str, Any] | None = None
    random: Mapping[str, Any] = field(default_factory=dict, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    runs: Mapping[str, str] = field(default_factory=dict)
    replicas: Replicas | None = field(default=None, repr=False)

    @property
    def epoch(self) -> int:
        """Return the pass over the data that training goes on in, from 0; of several loaders, over
        the first."""
        return int(self._first["epoch"])

    @property
    def batch(self) -> int:
        """Return how many batches of that pass were handed out before: what a loop that counts them
        goes on from, `enumerate(loader, at.batch if epoch == at.epoch else 0)`."""
        return int(self._first["batches"])

    @property
    def _first(self) -> Mapping[str, Any]:
        if self.data is None:
            return {"epoch": 0, "batches": 0}
        return self.data if "epoch" in self.data else next(iter(self.data.values()))


def named_in(model: str, name: str) -> str:
    """Return the name of a parameter among those of several models; one has the name ""."""
    return f"{model}.{name}" if model else name


def check_kind(saved: str, here: str) -> None:
    """Raise where an optimizer is of another class."""
    if saved != here:
        raise ConfigurationError(
            f"This checkpoint belongs to a different optimizer. Received: {saved} in it, {here} "
            "here. Create the optimizer as it was when the checkpoint was saved."
        )


def check_names(what: str, saved: Sequence[str], here: Sequence[str]) -> None:
    """Raise for the first name that only one side has."""
    missing = [name for name in here if name not in {*saved}]
    surplus = [name for name in saved if name not in {*here}]
    if missing or surplus:
        only = f"{missing[0]!r} here alone" if missing else f"{surplus[0]!r} in it alone"
        raise ConfigurationError(
            f"This checkpoint belongs to different {what}. Received: {only}, {len(missing)} "
            f"missing in it and {len(surplus)} too many. Create them as they were when the "
            "checkpoint was saved."
        )
