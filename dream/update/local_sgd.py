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
from typing import Any, NoReturn, final

from dream._errors import ConfigurationError, Unsupported


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

    @property
    @abstractmethod
    def apart(self) -> bool:
        """Whether replicas may have parameters or states of their own."""

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return what makes this schedule another one than others."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Say when they come together next, in plain values, the options among them."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None: ...

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise where a checkpoint's replicas came together in another way."""
        saved = {name: state.get(name) for name in self.options}
        if saved != self.options:
            raise ConfigurationError(
                "This checkpoint was trained with other averaging options, so resuming would not "
                f"continue the same training. Received: {saved} in it, {self.options} here. Pass "
                "the same options."
            )

    def settled(self, place: int, mean: Any) -> Any:
        """Return what a parameter becomes where they are made alike, which they are not. place: in
        the optimizer's order. mean: over the replicas."""
        del place
        return mean


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

    @property
    def apart(self) -> bool:
        return self._apart

    @property
    def options(self) -> dict[str, Any]:
        return {"every": self._every, "outer_lr": None}

    def state(self) -> dict[str, Any]:
        told = {"steps": self._steps, "apart": self._apart, "stepped": self._stepped}
        return {**self.options, **told}

    def load(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state["steps"])
        self._apart, self._stepped = bool(state["apart"]), bool(state["stepped"])


def refuse_weight() -> NoReturn:
    _refuse("weight=", "Use 'mirrored', or remove weight")


def refuse_weigh(count: object) -> NoReturn:
    _refuse(f"weigh(loss, count={count!r})", "Use 'mirrored'")


def _refuse(received: str, remedy: str) -> NoReturn:
    raise Unsupported(
        f"Replicas that step independently do not know each other's counts. Received: {received} "
        f"under 'local_sgd'. {remedy}."
    )
