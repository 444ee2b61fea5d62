"""Replicas that step alone for long, and come together in an outer step: DiLoCo (Douillard et al.,
arXiv:2311.08105, algorithm 1).

Every so many steps the ranks average how far each has come from where all began. That is the
gradient of an outer optimizer, SGD with Nesterov's momentum, whose step all of them make alike.
What an inner optimizer holds stays each rank's own, so parameters alone travel. In fragments, each
of them as often, they travel in turn (Douillard et al., arXiv:2501.18512, section 2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Protocol, cast, final

from dream._errors import ConfigurationError
from dream.update.local_sgd import Schedule

MOMENTUM = 0.9
"""The paper's, which is the option's default."""


class Replica(Protocol):
    """One rank's parameters, by their places in one order."""

    def shapes(self) -> Sequence[Sequence[int]]: ...
    def copies(self, places: Sequence[int]) -> list[Any]: ...
    def means(self, values: list[Any]) -> list[Any]:
        """Over the ranks. Every rank calls it."""
        ...

    def assign(self, places: Sequence[int], values: list[Any]) -> None: ...


@final
class OuterSteps(Schedule):
    """The outer steps of one replica. settled: called when a pass ends, for what has no
    gradient."""

    def __init__(
        self, options: Mapping[str, object], replica: Replica, settled: Callable[[], None]
    ) -> None:
        self._rate = cast(float, options["outer_lr"])
        self._momentum = cast(float, options["outer_momentum"])
        self._every, self._count = cast(int, options["every"]), cast(int, options["fragments"])
        self._replica, self._settled = replica, settled
        self._begun: list[Any] = []
        self._velocity: list[Any] = []
        self._fragments: list[list[int]] = []
        self._apart: set[int] = set()
        self._steps = 0

    def before_step(self) -> bool:
        if not self._begun:
            self._begun = self._replica.copies(range(len(self._replica.shapes())))
            self._velocity = [0 * value for value in self._begun]
        self._cut()
        self._steps += 1
        return False

    def after_step(self) -> None:
        self._apart.update(range(len(self._fragments)))
        gap = self._every // self._count
        self._come_together(
            index
            for index in range(len(self._fragments))
            if (self._steps - index * gap) % self._every == 0
        )

    def settle(self) -> None:
        self._cut()
        self._come_together(sorted(self._apart))
        self._settled()

    def _come_together(self, fragments: Iterable[int]) -> None:
        due = [index for index in fragments if index in self._apart]
        places = [place for index in due for place in self._fragments[index]]
        if not places:
            return
        self._apart.difference_update(due)
        means = self._replica.means(self._replica.copies(places))
        for place, mean in zip(places, means, strict=True):
            self._begun[place], self._velocity[place] = self._stepped(place, mean)
        self._replica.assign(places, [self._begun[place] for place in places])

    def _stepped(self, place: int, mean: Any) -> tuple[Any, Any]:
        """As torch.optim.SGD(nesterov=True) steps, down what was gone. The value and velocity."""
        gone = self._begun[place] - mean
        velocity = self._momentum * self._velocity[place] + gone
        return self._begun[place] - self._rate * (gone + self._momentum * velocity), velocity

    @property
    def apart(self) -> bool:
        return True  # the inner optimizer's state always is

    def settled(self, place: int, mean: Any) -> Any:
        self._cut()
        fragment = next((i for i, places in enumerate(self._fragments) if place in places), -1)
        return self._stepped(place, mean)[0] if fragment in self._apart else mean

    def state(self) -> dict[str, Any]:
        return {**self.options, "steps": self._steps, "apart": sorted(self._apart)}

    def load(self, state: Mapping[str, Any]) -> None:
        self._steps, self._apart = int(state["steps"]), {*state["apart"]}

    @property
    def options(self) -> dict[str, Any]:
        told = {"outer_lr": self._rate, "outer_momentum": self._momentum}
        return {"every": self._every, "fragments": self._count, **told}

    def common(self) -> tuple[list[Any], list[Any]]:
        """Return where all began, and how fast they go, by the parameters' places; nothing before
        the first step."""
        return self._begun, self._velocity

    def load_common(self, begun: list[Any], velocity: list[Any]) -> None:
        self._begun, self._velocity = begun, velocity

    def _cut(self) -> None:
        self._fragments = self._fragments or cut(self._replica.shapes(), self._count)


def check(options: Mapping[str, object]) -> None:
    """Refuse what cannot be, of the options of any strategy."""
    if "outer_lr" not in options:
        return
    rate, momentum = cast(float | None, options["outer_lr"]), cast(float, options["outer_momentum"])
    every, fragments = cast(int, options["every"]), cast(int, options["fragments"])
    received = f"outer_lr={rate}, outer_momentum={momentum}, fragments={fragments}, every={every}"
    if rate is None:
        if (momentum, fragments) != (MOMENTUM, 1):
            raise ConfigurationError(
                "Momentum and fragments need an outer optimizer; plain averaging has none. "
                f"Received: {received}. Pass outer_lr=, for example 0.7."
            )
    elif not rate > 0.0 or not momentum < 1.0:
        raise ConfigurationError(
            "The outer optimizer needs a learning rate above 0 and a momentum below 1. Received: "
            f"{received}. The paper's are 0.7 and 0.9."
        )
    elif fragments > every:
        raise ConfigurationError(
            f"Fragments are averaged in turn, at most one per step. Received: {received}. Use at "
            "most as many fragments as steps."
        )


def cut(shapes: Sequence[Sequence[int]], parts: int) -> list[list[int]]:
    """Return the places of neighbouring tensors in parts of about as many elements; none is
    empty, so they are no more than the tensors."""
    sizes = [prod(shape) for shape in shapes]
    total, before = sum(sizes) or 1, 0
    found: list[list[int]] = [[] for _ in range(parts)]
    for place, size in enumerate(sizes):
        found[min(parts - 1, parts * (2 * before + size) // (2 * total))].append(place)
        before += size
    return [part for part in found if part]
