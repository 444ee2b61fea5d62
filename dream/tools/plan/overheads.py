"""What a strategy's own code costs here, read from a small model that is trained under it.

Its step takes longer than its operations, timed by themselves, and its messages. The rest, shared
out among the operations, is what one costs beside: Python's part of it, autograd's, hooks, and what
waits for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from dream import _registry
from dream._errors import ConfigurationError, Unsupported
from dream._spec import Framework
from dream.tools.plan import planned
from dream.tools.plan.asked import Asked, Training
from dream.tools.plan.calibrate import Here
from dream.tools.plan.candidates import Candidate, candidates
from dream.tools.plan.forecast import Source, forecast, ops_of
from dream.tools.plan.measure import run, slowest
from dream.tools.plan.trial import Job, Trial

_BLOCK, _BLOCKS = 20, 3
"""Steps of a block, and how many the quickest is of."""
_SMALL = 1e-6
"""Seconds."""


def read(
    here: Here, framework: Framework, ranks: Iterable[int], training: Training, timeout: float
) -> None:
    """Have the machine know it, for one rank, and for several where some ranks are. timeout:
    seconds that each run may take."""
    if framework not in _registry.REFERENCES:
        return
    place = _registry.REFERENCES[framework]
    most = 2 if max(ranks) > 1 else 1
    asked = Asked(place, most, None, None, replace(training, fused=False))
    with planned.room(place, timeout) as held:
        told = planned.told(asked, held)
        assert told.batch is not None
        reader = _Reader(here, framework, planned.source_of(held), asked, told.batch, timeout)
        found = candidates(most, most, told.batch, told.kinds)
        for devices in (1, most):
            reader.learn([one for one in found if one.devices == devices])
        for one in found:
            reader.read(one)


def _quickest(trials: Sequence[Trial]) -> float:
    """Seconds of a step, in the block that was disturbed least."""
    begins = range(0, _BLOCK * _BLOCKS, _BLOCK)
    return min(
        slowest([replace(one, seconds=one.seconds[begin : begin + _BLOCK]) for one in trials])
        for begin in begins
    )


@final
class _Reader:
    def __init__(
        self,
        here: Here,
        framework: Framework,
        source: Source,
        asked: Asked,
        batch: int,
        timeout: float,
    ) -> None:
        self._here, self._framework, self._source = here, framework, source
        self._asked, self._batch, self._timeout = asked, batch, timeout

    def learn(self, found: Sequence[Candidate]) -> None:
        """Have the machine time their operations, all in one run."""
        self._here(found[0].devices, ops_of(found, self._source, self._batch))

    def read(self, one: Candidate) -> None:
        try:
            bare, dearer = self._foretold(one, 0.0), self._foretold(one, _SMALL)
        except (Unsupported, ConfigurationError):
            return  # and nor is the user's model foretold so
        job = Job(
            self._asked.place,
            self._asked.training,
            self._batch,
            one.shares,
            _BLOCK * _BLOCKS,
            watched=False,
        )
        trials = run(job, self._framework, one, self._timeout)
        if not isinstance(trials, str):
            slope = (dearer - bare) / _SMALL
            self._here.overheads[one.strategy] = max(0.0, _quickest(trials) - bare) / slope

    def _foretold(self, one: Candidate, beside: float) -> float:
        """Seconds of a step where each operation costs so much beside."""
        hardware = self._here(one.devices, ops_of([one], self._source, self._batch))
        told = forecast(
            one,
            self._source,
            self._batch,
            replace(hardware, overheads={}, beside=beside),
            self._asked.training.computes_in,
            None,
        )
        return told.time.step
