"""How a module's DistributedDataParallel is made, what it wraps, and its forward pass over that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dream._errors import Unsupported
from dream.adapters.pytorch import private
from dream.adapters.pytorch.call_hook import CallHook
from dream.adapters.pytorch.collectives import GradientHook
from dream.adapters.pytorch.errors import unfinished
from dream.adapters.pytorch.parallel.ddp.late import LateReduction
from dream.adapters.pytorch.parallel.one_copy.training import OneCopyTraining
from dream.collectives import Communicator
from dream.shared_memory import Riders
from dream.update.fitting import AUTO

_TAKES = signature(DistributedDataParallel.__init__).parameters
_SYNC = "forward_sync_buffers" if "forward_sync_buffers" in _TAKES else "broadcast_buffers"
_KEEP_BUFFERS: dict[str, Any] = {_SYNC: False}
"""As torch calls it from 2.13 on, and before."""


def detaching(detach: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    """`Tensor.detach_`, by which many an optimizer's zero_grad begins. A gradient that lies in a
    bucket is a view, which torch does not detach, though there is nothing to detach it from."""

    @wraps(detach)
    def wrapped(tensor: torch.Tensor) -> torch.Tensor:
        return detach(tensor) if tensor.requires_grad else tensor

    return wrapped


@final
@dataclass(frozen=True, slots=True)
class DdpSettings:
    """How DDP is set up for a strategy.

    options: of the strategy. hook: reduces a bucket; None leaves it to the process group.
    riders: what travels with each bucket that it reduces. once: what puts parameters in memory that
    all ranks share, instead; None for replicas of their own. after: gradients are averaged once a
    backward pass has ended.
    """

    options: Mapping[str, Any]
    hook: GradientHook | None
    riders: Riders | None = None
    once: OneCopyTraining | None = None
    after: bool = False

    def wrap(self, runner: DdpForward, taken: set[int]) -> DistributedDataParallel:
        """Make a DDP over the runner. taken: ids of parameters that another module's DDP
        reduces."""
        ignored = (name for name, p in runner.named_parameters() if id(p) in taken)
        private.ignore_parameters(runner, ignored)
        ddp = DistributedDataParallel(
            runner,
            init_sync=False,
            **_KEEP_BUFFERS,
            gradient_as_bucket_view=self.options["bucket_view"],
            bucket_cap_mb=self.options["bucket_mb"],
            static_graph=self.options["static_graph"],
        )
        if self.hook is not None and not self.sparse(runner):
            ddp.register_comm_hook(runner.buckets if self.riders else None, self.hook)
        return ddp

    @property
    def fits(self) -> bool:
        """Whether an update may have to be begun again."""
        return self.options.get("accumulate") == AUTO

    def late(self, trained: Sequence[nn.Parameter], ranks: Communicator) -> LateReduction | None:
        """What averages gradients in place of a DDP, where that is to be done after backward, or an
        update may be begun again."""
        if not (self.fits or self.after) or ranks.world_size == 1:
            return None
        return LateReduction(trained, ranks, self.options["bucket_mb"])

    def riders_of(self, runner: nn.Module) -> Riders | None:
        """What travels with a module's gradients by itself."""
        return None if self.sparse(runner) else self.riders

    def sparse(self, runner: nn.Module) -> set[torch.Tensor]:
        """Return those whose gradients are sparse, which torch's own process group reduces."""
        kinds = (nn.Embedding, nn.EmbeddingBag)
        found = [m for m in runner.modules() if isinstance(m, kinds) and m.sparse]
        if found and self.options.get("compression", "none") not in (None, "none"):
            raise Unsupported(
                "Sparse gradients are not compressed. Received: "
                f"compression={self.options['compression']!r} and a {type(found[0]).__name__} with "
                "sparse=True. Remove one of them."
            )
        return {m.weight for m in found}


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
