"""The module that DDP wraps, and DDP's forward pass over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

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
        again, as it does after the first backward pass.
    """

    def __init__(self) -> None:
        self.reduced = False
        self.kept: dict[int, Any] | None = None


@final
class DdpForward(nn.Module):
    """The module that DDP wraps: it runs the user's, and has a message beside its parameters.

    buckets: what the hook tells of DDP's buckets.
    """

    def __init__(self, hook: CallHook) -> None:
        super().__init__()
        self._hook = hook
        self.inner = hook.module
        self.message: nn.Parameter | None = None
        self.forget_buckets()

    def forget_buckets(self) -> None:
        """Another DDP has other buckets."""
        self.buckets = BucketState()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._hook.inner(*args, **kwargs)


def forward_of(ddp: DistributedDataParallel, runner: DdpForward) -> Callable[..., Any]:
    """DDP's forward pass. Where nothing is to be found out about the graph, that is three calls
    of its reducer; the rest of `DDP.forward` (joins, moves, casts, buffers, a profiler's label) is
    never used here and would cost a small model 4 % of its step."""
    if ddp.static_graph:
        return ddp.forward
    reducer = ddp.reducer
    run, rebuild_buckets = runner.forward, private.rebuild_buckets_of(reducer)

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
