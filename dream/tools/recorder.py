"""Record what hooks tell while a script trains, and end it when it has trained enough."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from logging import LogRecord
from typing import TYPE_CHECKING, Any, final

from dream import cluster
from dream._adapter import Adapter, Asynchronous
from dream._framework import ImportWatch
from dream._log import logger
from dream._observers import Observer
from dream._topology import Cluster
from dream.strategies import registry
from dream.strategies.spec import FRAMEWORKS
from dream.tools import frameworks, record
from dream.tools.record import Clock, Record, RecordRequest, Step, StepPace, Traits

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Seeding:
    """Seeds Python's generator and NumPy's now, and a framework's once it is imported."""

    def __init__(self, number: int) -> None:
        import numpy as np

        self._number = number
        self._left = list(FRAMEWORKS)
        random.seed(number)
        np.random.seed(number)
        self._watch()

    def _watch(self) -> None:
        if self._left:
            ImportWatch(self._imported).install()

    def _imported(self) -> None:
        for framework in [name for name in self._left if name in sys.modules]:
            self._left.remove(framework)
            registry.load(registry.SEEDS[framework])(self._number)
        self._watch()


_KERAS = "keras.src.models.model.Model"


class StopTraining(SystemExit):
    """The script has trained as long as was asked: it ends here, as by `sys.exit`."""


@final
class Recorder(Observer):
    """The one of this process. Losses are kept as they come and read at the end, so that nobody
    waits for a device."""

    def __init__(self, request: RecordRequest, place: Cluster) -> None:
        self.request = request
        self._place = place
        self._steps: list[tuple[Any, float | None, int | None, int | None, int]] = []
        self._models: list[tuple[Any, Callable[[], Traits], Adapter]] = []
        self._to_nudge: list[Any] = []
        self._datasets: list[int] = []
        self._draws: dict[str, None] = {}
        self._dtypes: dict[str, None] = {}
        self._adapter: Adapter | None = None
        self._said: dict[str, str] = {}
        self._keras_observed = False
        self._depth = 0
        self._written = False
        self._clock = Clock()
        self._seeding = Seeding(0)
        self._lines: dict[str, None] = {}
        logger.addFilter(self._heard)

    @property
    def draws_alike(self) -> bool:  # type: ignore[override]
        return "alike" in self.request.changes

    @property
    def plain(self) -> bool:  # type: ignore[override]
        return "plain" in self.request.changes

    @property
    def inside(self) -> bool:
        """Whether what happens now is part of a step that is recorded as a whole."""
        return self._depth > 0

    def _heard(self, line: LogRecord) -> bool:
        self._lines[line.getMessage()] = None
        return True

    def entering(self, adapter: Adapter, framework: str, strategy: str) -> None:
        first, self._adapter = self._adapter is None, adapter
        self._clock.entered()
        self._said = {"framework": framework, "strategy": strategy}
        if first:
            registry.load(frameworks.OBSERVE[framework])(self)
        if self.plain:  # no part of a block tells of Keras then
            ImportWatch(self.entering_keras, ("keras",)).start()

    def entering_keras(self) -> None:
        if not self._keras_observed:
            self._keras_observed = True
            registry.load(frameworks.OBSERVE["keras"])(self)

    def before_step(self) -> None:
        """A step begins. Ends the script where it has taken all that were asked for: on every
        rank, for all take the same steps."""
        if len(self._steps) >= self.request.steps:
            self.finish(stopped=True)
            raise StopTraining(0)
        self._nudge()

    def step(
        self,
        loss: Any,
        samples: int | None = None,
        glance: int | None = None,
        *,
        local: bool,
        batches: int = 1,
    ) -> None:
        """A step's loss, a number or a tensor of one. local: it is this rank's own, to be weighed
        by its share. The others: as in `Step`."""
        weight = self._adapter.loss_weight() if local and self._adapter is not None else None
        self._steps.append((loss, weight, samples, glance, batches))
        self._clock.step()

    @contextmanager
    def whole_step(self) -> Iterator[None]:
        """What happens inside is part of a step that is recorded as a whole."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def observed(self, step: Callable[..., Any], model: Any) -> Callable[..., Any]:
        """Record a callable that trains on a batch and returns the global loss."""

        @wraps(step)
        def call(*batch: Any) -> Any:
            self.before_step()
            with self.whole_step():
                loss = step(*batch)
            self.step(loss, record.samples(batch), local=False)
            return loss

        kind = _kind_of(model)
        if kind:
            self.saw_model(model, registry.load(frameworks.TRAITS[kind]))
        return call

    def saw_model(self, model: Any, traits: Callable[[Any], Traits]) -> None:
        """A model is trained. traits: tells what it is like, at the end."""
        if self._adapter is not None and all(model is not known for known, _, _ in self._models):
            self._models.append((model, lambda: traits(model), self._adapter))
            if "nudged" in self.request.changes:
                self._to_nudge.append(model)
                self._nudge()

    def _nudge(self) -> None:
        """What a model's first step makes is nudged as the next begins."""
        self._to_nudge = [
            model
            for model in self._to_nudge
            if not registry.load(frameworks.NUDGE[_kind_of(model)])(model)
        ]

    def saw_dataset(self, samples: int) -> None:
        self._datasets.append(samples)

    def saw_draw(self, name: str) -> None:
        """Random numbers were drawn while a model worked."""
        self._draws[name] = None

    def saw_dtype(self, name: str) -> None:
        """Something was computed in this dtype."""
        self._dtypes[name] = None

    def finish(self, *, stopped: bool = False) -> None:
        """Write everything down, once. Every rank comes here, or none."""
        if self._written:
            return
        self._written = True
        pace = self._clock.pace()  # what is gathered below is no training
        parameters: dict[str, NDArray[Any]] = {}
        gradient_bytes = 0
        found: list[Traits] = []
        for index, (model, traits, adapter) in enumerate(self._models):
            found.append(traits())
            state = adapter.full_state(model)
            gradient_bytes += record.trained_bytes(state, found[-1])
            parameters |= record.arrays(state, found[-1].named, f"{index}/" if index else "")
        told = self._record(found, pace, gradient_bytes, stopped=stopped)
        record.write(self.request.folder, told, parameters)

    def _record(
        self, traits: Sequence[Traits], pace: StepPace, gradient_bytes: int, *, stopped: bool
    ) -> Record:
        who = self._adapter
        return Record(
            rank=self._place.rank,
            world_size=self._place.world_size,
            replicas=1 if who is None else who.topology.num_replicas,
            reduction=_reduction(who),
            keras=any(record.is_of(model, _KERAS) for model, _, _ in self._models),
            stopped=stopped,
            dtype=record.coarsest([*self._dtypes, *(each.dtype for each in traits)]),
            steps=tuple(Step(float(loss), w, n, g, many) for loss, w, n, g, many in self._steps),
            draws=tuple(name for each in traits for name in each.draws) or tuple(self._draws),
            drawn=bool(self._draws),
            statistics=tuple(name for each in traits for name in each.statistics),
            datasets=tuple(self._datasets),
            gradient_bytes=gradient_bytes,
            pace=pace,
            lines=tuple(self._lines),
            staleness=who.staleness().to_json() if isinstance(who, Asynchronous) else None,
            **self._said,
        )


def _kind_of(model: Any) -> str:
    """Return the name of its base class; empty where it is no framework's model."""
    return next((name for name in frameworks.TRAITS if record.is_of(model, name)), "")


def _reduction(adapter: Adapter | None) -> str:
    """Return who adds the gradients up."""
    if adapter is None:
        return ""
    return "servers" if isinstance(adapter, Asynchronous) else adapter.communicator.reduction


def begin(words: str) -> Recorder:
    """Record from now on, as the words of a `Request` ask."""
    return Recorder(RecordRequest.of(words), cluster.detect())
