"""BatchNorm over the replicas of one process, which run in threads: its statistics are those of the
whole batch, as one device has them.

Statistics are computed once, of all replicas' inputs, by operations that gradients flow back
through; so a backward pass has to be one for all replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from threading import Condition
from typing import Any, final

import torch
from torch import nn

from dream._errors import ConfigurationError
from dream.adapters.pytorch.call_hook import CallHook, called_with, hook_of, set_hook
from dream.adapters.pytorch.private import BatchNorm, check_input_dim
from dream.adapters.pytorch.update.batch_norm import Moments, moments_of, normalised

_PATIENCE = 600.0


def normalises(module: nn.Module) -> bool:
    """Whether a training call looks at the batch as a whole."""
    return any(norm.training for norm in _norms(module))


@contextmanager
def meeting(replicas: Sequence[nn.Module]) -> Iterator[Callable[..., Callable[..., Any]]]:
    """While it is open, the BatchNorms of replicas wait for each other. Gives what each replica's
    call is to be wrapped in."""
    shared = _Meeting(len(replicas))
    whose = [_norms(replica) for replica in replicas]
    before = [[hook_of(norm) for norm in norms] for norms in whose]
    for copies in zip(*whose, strict=True):
        point = _MeetingPoint(shared)
        for index, norm in enumerate(copies):
            set_hook(norm, _Member(norm, point, index))
    try:
        yield shared.watched
    finally:
        for norms, slots in zip(whose, before, strict=True):
            for norm, slot in zip(norms, slots, strict=True):
                set_hook(norm, slot)


def _norms(module: nn.Module) -> list[BatchNorm]:
    return [part for part in module.modules() if isinstance(part, BatchNorm)]


@final
class _Meeting:
    """The replicas of one call, which wait for each other. left: whether one is through with its
    call, and comes to no BatchNorm any more."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = Condition()
        self.left = False
        self.failure: BaseException | None = None

    def watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, whose end the others do not wait for in vain."""

        @wraps(call)
        def wrapped(*args: Any) -> Any:
            try:
                return call(*args)
            except BaseException as error:
                with self.changed:
                    self.failure = self.failure or error
                raise
            finally:
                with self.changed:
                    self.left = True
                    self.changed.notify_all()

        return wrapped

    def wait(self, done: Callable[[], bool]) -> None:
        """Until a replica has done what the others need, by `changed`'s lock."""
        self.changed.wait_for(lambda: done() or self.left, _PATIENCE)
        if done():
            return
        if self.failure is not None:
            raise self.failure
        raise ConfigurationError(
            "A BatchNorm sees the whole batch, so every replica calls it as often. Received: one "
            "that was called for some parts of the batch only. Pass sync_batch_norm=False, or call "
            "it whatever the samples are."
        )


@final
class _MeetingPoint:
    """The place where the copies of one BatchNorm meet."""

    def __init__(self, meeting: _Meeting) -> None:
        self._meeting = meeting
        self._given: dict[int, torch.Tensor] = {}
        self._rounds = 0
        self._found: Moments | None = None

    def moments(self, index: int, x: torch.Tensor) -> Moments:
        """Return those of what all copies are given."""
        meeting = self._meeting
        with meeting.changed:
            turn = self._rounds
            self._given[index] = x
            if len(self._given) == meeting.size:
                self._found = moments_of([self._given[i] for i in range(meeting.size)])
                self._given.clear()
                self._rounds += 1
                meeting.changed.notify_all()
            else:
                meeting.wait(lambda: self._rounds > turn)
            assert self._found is not None
            return self._found


@final
class _Member(CallHook):
    """Takes the calls of one copy."""

    def __init__(self, norm: BatchNorm, point: _MeetingPoint, index: int) -> None:
        super().__init__(norm)
        self._norm, self._point, self._index = norm, point, index

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor
        if self._norm.training:
            output = called_with(self._norm, self._normalise, self.inner, x)
        else:
            output = self.inner(x)
        return output

    def _normalise(self, x: torch.Tensor) -> torch.Tensor:
        check_input_dim(self._norm, x)
        return normalised(self._norm, x, self._point.moments(self._index, x))
