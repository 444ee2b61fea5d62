"""Tell `dream profile` of torch's phases. torch is changed once, for the life of a process that is
profiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from dream.adapters.pytorch.data.digests import ComparedIterator
from dream.adapters.pytorch.data.loader import _DealtIterator
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.parallel.ddp.settings import DdpSettings
from dream.adapters.pytorch.private import LoaderIterator
from dream.collectives import Communicator
from dream.stall.phases import Phase
from dream.tools.profile.profiler import Profiler, clock

_MEETINGS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Those in which every rank waits for all others."""


def observe(profiler: Profiler) -> None:
    """From now on, tell the profiler."""
    seen = TorchPhases(profiler)
    timed = profiler.timed
    hooks = Hooks()
    hooks.wrap("call", seen.forward)
    hooks.wrap("tensor_backward", seen.backward)
    hooks.wrap("backward", seen.backward)
    hooks.wrap("iter", lambda iterate: timed(Phase.INPUT, iterate))
    hooks.wrap("bucket_hook", seen.hooked)
    hooks.open()
    optimizers.register_optimizer_step_pre_hook(seen.optimizer_begins)
    optimizers.register_optimizer_step_post_hook(seen.optimizer_ends)
    for kind in (LoaderIterator, _DealtIterator, ComparedIterator):
        kind.__next__ = timed(Phase.INPUT, kind.__next__)  # type: ignore[method-assign]
    DdpSettings.wrap = _with_hook(DdpSettings.wrap)  # type: ignore[method-assign]
    for name in _MEETINGS:
        setattr(Communicator, name, profiler.meeting(name, getattr(Communicator, name)))


def _with_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """`DdpSettings.wrap`: what torch's process group reduces by itself, it does by a hook, which
    can be timed."""

    @wraps(original)
    def wrap(settings: DdpSettings, runner: Any, taken: set[int]) -> DistributedDataParallel:
        ddp: DistributedDataParallel = original(settings, runner, taken)
        if settings.hook is None and not settings.sparse(runner):
            ddp.register_comm_hook(ddp.process_group, default_hooks.allreduce_hook)
        return ddp

    return wrap


@final
class TorchPhases:
    """Wraps torch's functions. A loss is part of forward: what lies between the last call of a
    model and backward."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._called: float | None = None
        self._depth = 0
        self._launched: float | None = None
        self._stepping = 0.0

    def forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.__call__`: the outermost one, with gradients on."""

        @wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            self._depth, begin = 1, clock()
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth, self._called = 0, clock()
                self._profiler.phase(Phase.FORWARD, begin, self._called)

        return call

    def backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return original(*args, **kwargs)
            begin = clock()
            if self._called is not None:
                self._profiler.phase(Phase.FORWARD, self._called, begin)
                self._called = None
            self._depth = 1
            try:
                return original(*args, **kwargs)
            finally:
                self._depth, end = 0, clock()
                if self._launched is not None:
                    self._profiler.met("the last bucket", self._launched, end)
                    self._launched = None
                self._profiler.phase(Phase.BACKWARD, begin, end)

        return call

    def hooked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`register_comm_hook`, of a hook that tells when a bucket is ready here."""

        @wraps(original)
        def register(ddp: Any, state: object, hook: Callable[..., Any]) -> None:
            @wraps(hook)
            def told(state: object, bucket: Any) -> Any:
                begin = clock()
                future = hook(state, bucket)
                if future.done():
                    self._profiler.met("a bucket", begin, clock())
                else:  # it is waited for at the end of backward
                    self._launched = clock()
                return future

            original(ddp, state, told)

        return register

    def optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        self._stepping = clock()

    def optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step of an optimizer ends a step of training."""
        del optimizer, args, kwargs
        self._profiler.phase(Phase.OPTIMIZER, self._stepping, clock())
        self._called = None
        self._profiler.step_ended()
        if self._profiler.enough:
            self._profiler.stop()
