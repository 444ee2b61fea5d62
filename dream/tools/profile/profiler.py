"""Record, in a rank, when phases of training begin and end. Frameworks tell by functions that are
wrapped once, for the life of a process that is profiled; nothing is asked of any other."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, final

from dream import cluster
from dream._adapter import Adapter, Asynchronous
from dream._errors import Unsupported
from dream._observers import Observer
from dream._topology import Cluster
from dream.stall.phases import Phase
from dream.strategies import registry
from dream.tools import frameworks
from dream.tools.profile.spans import CollectiveCall, ProfileRequest, RankProfile, Span
from dream.tools.recorder import StopTraining

_TRIES = 2000
clock = time.monotonic


@final
class Profiler(Observer):
    """The one of this process. Of phases in one another the outermost counts; so of calls."""

    def __init__(self, request: ProfileRequest, place: Cluster) -> None:
        self._request, self._place = request, place
        self._adapter: Adapter | None = None
        self._said = {"framework": "", "strategy": ""}
        self._spans: list[Span] = []
        self._calls: list[CollectiveCall] = []
        self._ends: list[float] = []
        self._inside = self._calling = False
        self._observed: set[str] = set()
        self._written = False

    def entering(self, adapter: Adapter, framework: str, strategy: str) -> None:
        if isinstance(adapter, Asynchronous):
            raise Unsupported(
                "Asynchronous workers have no common step, so there is no step to break down. "
                f"Received: {strategy!r}. Profile a synchronous strategy; `strategy.staleness()` "
                "reports on the updates of this one."
            )
        self._adapter = adapter
        self._said = {"framework": framework, "strategy": strategy}
        self._observe(framework)

    def entering_keras(self) -> None:
        self._observe("keras")

    def _observe(self, name: str) -> None:
        if name not in self._observed:
            self._observed.add(name)
            registry.load(frameworks.PROFILE[name])(self)

    def observed(self, step: Callable[..., Any], model: Any) -> Callable[..., Any]:
        """Return the step, recorded as a whole where it is compiled."""
        if self._said["framework"] != "tensorflow":
            return step
        timed = self.timed(Phase.STEP, step)

        @wraps(step)
        def call(*batch: Any) -> Any:
            if self.enough:
                self.stop()
            value = timed(*batch)
            self.step_ended()
            return value

        return call

    def timed(self, phase: Phase, function: Callable[..., Any]) -> Callable[..., Any]:
        """Record calls of a function as a phase."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, begin = True, clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False
                self._spans.append(Span(phase, begin, clock()))

        return call

    def meeting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Record calls of a function in which every rank waits for all others."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._calling:
                return function(*args, **kwargs)
            self._calling, begin = True, clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._calling = False
                self._calls.append(CollectiveCall(name, begin, clock()))

        return call

    def phase(self, phase: Phase, begin: float, end: float) -> None:
        """Record one that is known only afterwards."""
        self._spans.append(Span(phase, begin, end))

    def met(self, name: str, begin: float, end: float) -> None:
        """Record a call that is known only afterwards."""
        self._calls.append(CollectiveCall(name, begin, end))

    @property
    def enough(self) -> bool:
        """Whether as many steps as were asked for have ended: on every rank, or on none."""
        return len(self._ends) > self._request.warm_up + self._request.steps

    def step_ended(self) -> None:
        self._ends.append(clock())

    def stop(self) -> None:
        """End the script, as by `sys.exit`. Raises StopTraining."""
        self.finish()
        raise StopTraining(0)

    def finish(self) -> None:
        """Write everything down, once."""
        if self._written:
            return
        self._written = True
        who = self._adapter
        bounds = self._ends[self._request.warm_up :]
        first = bounds[0] if bounds else 0.0
        spans = [span for span in self._spans if bounds and span.end > first]
        calls = [call for call in self._calls if bounds and call.begin >= first]
        events = (len(spans) + len(calls)) / max(1, len(bounds) - 1)
        RankProfile(
            rank=self._place.rank,
            reduction="" if who is None else who.communicator.reduction,
            bounds=tuple(bounds),
            spans=tuple(spans),
            calls=tuple(calls),
            own_seconds=events * _cost(),
            **self._said,
        ).write(self._request.folder)


def _cost() -> float:
    """Return the seconds that recording one event takes here."""
    idle = Profiler.__new__(Profiler)
    idle._spans, idle._inside = [], False
    timed = idle.timed(Phase.OWN, lambda: None)
    begin = clock()
    for _ in range(_TRIES):
        timed()
    return (clock() - begin) / _TRIES


def begin(words: str) -> Profiler:
    """Record from now on, as the words of a `ProfileRequest` ask."""
    return Profiler(ProfileRequest.of(words), cluster.detect())
