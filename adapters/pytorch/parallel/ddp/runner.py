"""A module's forward pass under DistributedDataParallel, the module itself left as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dream.adapters.pytorch.errors import unfinished
from dream.adapters.pytorch.parallel.ddp.hooks import GradientHook
from dream.adapters.pytorch.slot import Slot


@final
class Runner(nn.Module):
    """What DDP wraps: it runs the user's module, and may carry one number with the gradients.

    carrier: a parameter of shape () whose gradient is set to the loss, so that the loss is
        reduced in the gradients' own bucket; None where nobody asked for it. With it the output
        is a pair: the module's, and what to start backward from beside the loss.
    searched: DDP searches the output for the parameters that take part; a parameter itself is
        not found, a tensor computed from it is.
    """

    def __init__(self, slot: Slot, *, searched: bool) -> None:
        super().__init__()
        self._searched = searched
        self._slot = slot
        self.inner = slot.module
        self.carrier: nn.Parameter | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self._slot.inner(*args, **kwargs)
        if self.carrier is None:
            return output
        return output, self.carrier + 0 if self._searched else self.carrier


def wrap(
    runner: Runner, options: Mapping[str, Any], hook: GradientHook | None, taken: set[int]
) -> DistributedDataParallel:
    """DDP over the runner. taken: ids of parameters that another module's DDP reduces already."""
    runner._ddp_params_and_buffers_to_ignore = [  # type: ignore[assignment]
        name for name, parameter in runner.named_parameters() if id(parameter) in taken
    ]
    ddp = DistributedDataParallel(
        runner,
        init_sync=False,
        forward_sync_buffers=False,
        gradient_as_bucket_view=options["bucket_view"],
        bucket_cap_mb=options["bucket_mb"],
        find_unused_parameters=options["find_unused"],
        static_graph=options["static_graph"],
    )
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


def forward_of(ddp: DistributedDataParallel, runner: Runner) -> Callable[..., Any]:
    """DDP's forward pass. Where nothing is to be found out about the graph, that is three calls
    of its reducer; the rest of `DDP.forward` (joins, moves, casts, buffers, a profiler's label) is
    never used here and would cost a small model 4 % of its step."""
    if ddp.find_unused_parameters or ddp.static_graph:
        forward: Callable[..., Any] = ddp.forward
        return forward
    reducer = ddp.reducer

    def lean(*args: Any, **kwargs: Any) -> Any:
        try:
            reducer.prepare_for_forward()
            reducer._rebuild_buckets()
        except RuntimeError as error:
            known = unfinished(error)
            if known is None:
                raise
            raise known from error
        output = runner.forward(*args, **kwargs)
        reducer.prepare_for_backward([])
        return output

    return lean


def scale_gradients(
    parameters: list[nn.Parameter], weight: float
) -> list[torch.utils.hooks.RemovableHandle]:
    """Have each parameter's gradient multiplied by `weight` before it is reduced; 0 makes it
    zero whatever it was, since the mean over no sample is nan."""
    scale = torch.zeros_like if weight == 0.0 else partial(torch.mul, weight)
    return [parameter.register_hook(scale) for parameter in parameters]
