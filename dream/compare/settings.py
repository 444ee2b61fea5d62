"""What is trained and how long, the same in every cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dream._errors import ConfigurationError
from dream._partition import check_batch_size

DIGITS: Mapping[str, str] = {
    "torch": "dream.adapters.pytorch.task:digits",
    "keras": "dream.adapters.keras.task:digits",
    "step": "dream.adapters.tensorflow.task:digits",
}
"""flavour -> `module:function(job, meter)`, run in every rank."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a task is told.

    batch_size: the global one; seed: of the initial weights and of the order of the samples.
    """

    epochs: int
    batch_size: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """What speeds hang on. cores: that we may use; load: processes that wanted one before the
    first cell started, the mean over a minute."""

    cores: int
    load: float


@dataclass(frozen=True, slots=True)
class Settings:
    """timeout: seconds that a cell may take, start-up included."""

    job: Job
    tasks: Mapping[str, str]
    timeout: float

    def check(self, n: int) -> None:
        """Refuse what no cell could run."""
        for what, value in (("epochs", self.job.epochs), ("timeout", self.timeout)):
            if value < 1:
                raise ConfigurationError(
                    f"Too little to train. Received: {what}={value}. Give at least 1."
                )
        check_batch_size(self.job.batch_size, n)
