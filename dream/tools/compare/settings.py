"""What is trained and how long, the same in every cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from dream._errors import ConfigurationError
from dream.data.partition import check_batch_size
from dream.tools.compare.slow import Slow
from dream.tools.compare.tasks import DEFAULT

PROGRAMS: Mapping[str, str] = {
    "torch": "dream.adapters.pytorch.tools.tasks.task:train",
    "owned": "dream.adapters.pytorch.tools.tasks.steps:train",
    "keras": "dream.adapters.keras.tools.tasks.task:train",
    "step": "dream.adapters.tensorflow.tools.task:train",
}
"""flavour -> `module:function(job, meter)`, run in every rank."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a task is told.

    batch_size: the global one; seed: of the initial weights and of the order of the samples.
    task: one of tasks.TASKS.
    """

    epochs: int
    batch_size: int
    seed: int = 0
    task: str = DEFAULT


@dataclass(frozen=True, slots=True)
class Settings:
    """timeout: seconds that a cell may take in a round, start-up included. within: those that all
    rounds but the first may take. script: what each rank's interpreter is given, where a user's
    script is compared; empty for an embedded task. slow: a worker that is slow in rows of their
    own."""

    job: Job
    tasks: Mapping[str, str]
    timeout: float
    rounds: int = 1
    script: tuple[str, ...] = ()
    within: float = inf
    slow: Slow | None = None

    @property
    def unit(self) -> str:
        """Of speeds."""
        return "steps/s" if self.script else "samples/s"

    def check(self, n: int) -> None:
        """Refuse what no cell could run."""
        for what, value in (
            ("epochs", self.job.epochs),
            ("timeout", self.timeout),
            ("rounds", self.rounds),
        ):
            if not value >= 1:  # nan too
                raise ConfigurationError(
                    f"Too little to train. Received: {what}={value}. Give at least 1."
                )
        if not self.script:
            check_batch_size(self.job.batch_size, n)
