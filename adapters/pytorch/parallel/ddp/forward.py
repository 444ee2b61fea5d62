"""The module that DDP wraps, and DDP's forward pass over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dream.adapters.pytorch import private
from dream.adapters.pytorch.call_hook import CallHook
from dream.adapters.pytorch.errors import unfinished


@final
class BucketState:
    """What a DDP's hook tells. Torch holds it by what Python's collector does not see into, so it
    must not lead to the module.

    reduced: whether the backward pass that runs has reduced every bucket.
    kept: what a hook keeps of buckets, by their numbers; None while DDP will make its buckets
        again, as it does after the first backward pass where it need not search.
    """

    def __init__(self, kept: dict[int, Any] | None) -> None:
        self.reduced, self.kept = False, kept


@final
class DdpForward(nn.Module):
    """The module that DDP wraps: it runs the user's, and has a message beside its parameters.

    searched: DDP searches the output for the parameters that take part; a parameter itself is
        not found, a tensor computed from it is.
    buckets: what the hook tells of DDP's buckets.
    started: what backward is to start from for the message to go, in a list, where a parameter is
        not taken for one of the module's.
    """

    def __init__(self, hook: CallHook, *, searched: bool) -> None:
        super().__init__()
        self._searched = searched
        self._hook = hook
        self.inner = hook.module
        self.message: nn.Parameter | None = None
        self.started: list[torch.Tensor] = []
        self.forget_buckets()

    def forget_buckets(self) -> None:
        """Another DDP has other buckets."""
        self.buckets = BucketState({} if self._searched else None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As DDP runs it: what it searches is among what is returned."""
        output = self.run(*args, **kwargs)
        return (output, *self.started) if self._searched else output

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """As it runs by itself."""
        output = self._hook.inner(*args, **kwargs)
        if self.message is not None:
            self.started[:] = [self.message + 0 if self._searched else self.message]
        return output

    def output_of(self, returned: Any) -> Any:
        """The module's own output, of what DDP returned."""
        return returned[0] if self._searched else returned


def forward_of(ddp: DistributedDataParallel, runner: DdpForward) -> Callable[..., Any]:
    """DDP's forward pass. Where nothing is to be found out about the graph, that is three calls
    of its reducer; the rest of `DDP.forward` (joins, moves, casts, buffers, a profiler's label) is
    never used here and would cost a small model 4 % of its step."""
    if ddp.find_unused_parameters or ddp.static_graph:
        return lambda *args, **kwargs: runner.output_of(ddp.forward(*args, **kwargs))
    reducer = ddp.reducer
    run, rebuild_buckets = runner.run, private.rebuild_buckets_of(reducer)

    def lean(*args: Any, **kwargs: Any) -> Any:
        try:
            reducer.prepare_for_forward()
            rebuild_buckets()
        except RuntimeError as error:
            known = unfinished(error)
            if known is None:
                raise
            raise known from error
        output = run(*args, **kwargs)
        reducer.prepare_for_backward([])
        return output

    return lean
