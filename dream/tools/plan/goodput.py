"""What is left of a job's time where devices fail: checkpoints, work done again, restarts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from dream._errors import ConfigurationError

HOUR = 3600.0


@final
@dataclass(frozen=True, slots=True)
class Reliability:
    """Seconds. between: from one failure of a device to its next, on average. checkpoint: that
    training stands still for one. restart: from a failure until it goes on. every: between
    checkpoints; None for the best."""

    between: float
    checkpoint: float
    restart: float
    every: float | None = None

    def __post_init__(self) -> None:
        given = {
            "--device-mtbf": self.between,
            "--checkpoint-seconds": self.checkpoint,
            "--restart-seconds": self.restart,
            "--checkpoint-every": 1.0 if self.every is None else self.every,
        }
        for name, value in given.items():
            if not 0 < value < math.inf and not (name == "--restart-seconds" and value == 0):
                raise ConfigurationError(
                    f"{name} is a time. Received: {value}. Give a number above 0."
                )


@final
@dataclass(frozen=True, slots=True)
class Goodput:
    """What remains of a device's time where devices fail.

    between: seconds from one failure of any device to the next. every: seconds between
    checkpoints. share: of the time that is training which lasts.
    """

    between: float
    every: float
    share: float


def goodput(asked: Reliability, devices: int) -> Goodput:
    """Return what is left on so many devices, any of which ends the job."""
    between = asked.between / devices
    every = best_interval(asked.checkpoint, between) if asked.every is None else asked.every
    return Goodput(between, every, share(every, asked.checkpoint, asked.restart, between))


def best_interval(checkpoint: float, between: float) -> float:
    """Return the seconds of work between checkpoints that lose least: Daly, "A higher order
    estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
    Systems 22(3), 2006, equation 37. Its first term is Young's, sqrt(2 * checkpoint * between)
    (CACM 17(9), 1974)."""
    if checkpoint >= 2 * between:
        return between
    ratio = checkpoint / (2 * between)
    young = math.sqrt(2 * checkpoint * between)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint


def share(every: float, checkpoint: float, restart: float, between: float) -> float:
    """Return the share of the time that is work which lasts, where failures come at random (Daly
    2006, equation 20): a restart may fail too, and what follows the last checkpoint is lost."""
    exponent = (every + checkpoint) / between
    if exponent + restart / between > _HOPELESS:
        return 0.0
    return every / (between * math.exp(restart / between) * math.expm1(exponent))


_HOPELESS = 700.0
"""Logarithm of the tries that a piece of work takes, beyond what a float holds."""
