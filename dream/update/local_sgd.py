"""When replicas that step alone (`local_sgd`) are averaged.

On every k-th step gradients, and parameters and the optimizer's tensors where these are apart, are
averaged, and the step is made on what comes out: the replicas are then alike to the bit. With k = 1
parameters and state are alike already and only gradients travel, so it is what `mirrored` does,
whatever the optimizer. For optimizers that are linear in the gradient (SGD, with momentum too) it
is no other than to average after the step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NoReturn, final

from dream._errors import Unsupported


class Schedule(ABC):
    """When the replicas of a job are made alike. Every rank asks as often as the others."""

    @abstractmethod
    def before_step(self) -> bool:
        """Count a step, of which the gradient is there; whether it was averaged for it."""

    @abstractmethod
    def after_step(self) -> None:
        """The step has been made."""

    @abstractmethod
    def settle(self) -> None:
        """Make the replicas alike."""


@final
class AveragingSchedule(Schedule):
    """Counts the steps of a replica. average: called by all of them at the same steps, with
    whether to average gradients, and whether parameters and state are apart."""

    def __init__(
        self, options: Mapping[str, object], average: Callable[[bool, bool], None]
    ) -> None:
        every = options["every"]
        assert isinstance(every, int)
        self._every, self._average = every, average
        self._steps = 0
        self._apart = self._stepped = False

    def before_step(self) -> bool:
        self._steps += 1
        self._stepped = True
        due = self._steps % self._every == 0
        if due:
            self._average(True, self._apart)
        self._apart = not due
        return due

    def after_step(self) -> None:
        pass

    def settle(self) -> None:
        if self._stepped:
            self._average(False, self._apart)
        self._apart = self._stepped = False


def refuse_weight() -> NoReturn:
    _refuse("weight=", "Use 'mirrored', or leave weight out")


def refuse_weigh(count: object) -> NoReturn:
    _refuse(f"weigh(loss, count={count!r})", "Use 'mirrored'")


def _refuse(received: str, remedy: str) -> NoReturn:
    raise Unsupported(
        "Replicas that step alone do not know each other's counts. Received: "
        f"{received} under 'local_sgd'. {remedy}."
    )
