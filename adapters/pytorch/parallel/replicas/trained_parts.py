"""A batch whose parts are trained on at the same time, the loss of each where it is computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from dream.adapters.pytorch.parallel.inner_calls import running_layers
from dream.adapters.pytorch.parallel.replicas.copies import add_gradients, settle_buffers
from dream.adapters.pytorch.parallel.replicas.data_parallel import gather
from dream.adapters.pytorch.parallel.replicas.meeting import normalises
from dream.adapters.pytorch.parallel.replicas.recomputing import Recomputing
from dream.adapters.pytorch.parallel.replicas.team import (
    Loss,
    Scored,
    Team,
    tell_of_statistics,
    waiting,
)
from dream.adapters.pytorch.step import check_scalar
from dream.adapters.pytorch.update.precision import Precision


def train(
    team: Team,
    model: nn.Module,
    loss: Loss,
    parts: list[Any],
    counts: list[float],
    weight: float = 1.0,
    scale: float = 1.0,
    precision: Precision | None = None,
    recomputing: Recomputing | None = None,
    *,
    together: bool = False,
) -> torch.Tensor:
    """The gradients of the mean loss over all parts, in the model's own parameters; that loss.

    parts: (inputs, target) for each place. counts: how many things each part's loss is the mean
    over. weight: what the mean counts for. scale: what gradients are larger by, and the loss that
    is told is not. precision: what the model is called in. recomputing: which layers are computed
    again. The loss is computed and differentiated in each place; only numbers are gathered.
    """
    if precision is not None:
        precision.cast(model)
    team.expect(model, parts[0][0], {})
    whole = Scored(model, loss)
    meets = together and len(counts) > 1 and normalises(model)
    if len(counts) > 1 and not together:
        tell_of_statistics(model)
    replicas: list[Scored] = []
    acts: list[Callable[..., torch.Tensor]] = []
    for index, count in enumerate(counts):
        if count > 0.0 or meets:
            replica = team.leaves(whole, index)
            call = partial(team.call, index, model)
            counts_for = weight * count / (sum(counts) or 1.0)
            act = partial(_valued, call, replica, counts_for, precision)
            acts.append(act if meets else partial(_differentiated, act, scale))
            replicas.append(replica)
        else:
            acts.append(_nothing)
    if recomputing is not None:
        recomputing.take(model, [replica.model for replica in replicas])
    with running_layers(), waiting(replicas, together=meets) as watched:
        values = team.apply([watched(act) for act in acts], parts)
    if meets:  # what one replica is normalised by depends on all
        torch.autograd.backward([value * scale for value in values if value.requires_grad])
    add_gradients(whole, replicas)
    if replicas:
        settle_buffers(whole, replicas)
    total: torch.Tensor = gather([value.detach() for value in values], team.first).sum()
    return total


def _valued(
    call: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any],
    replica: Scored,
    weight: float,
    precision: Precision | None,
    inputs: tuple[Any, ...],
    target: Any,
) -> torch.Tensor:
    """A part's loss, times what it counts for."""

    def forward(*inputs: Any) -> Any:
        return call(replica.model, inputs, {})

    output = forward(*inputs) if precision is None else precision.call(forward, inputs, {})
    if not weight:  # a mean over nothing; but others are normalised by what went through
        return torch.zeros(())
    return check_scalar(replica.loss(output, target)) * weight


def _differentiated(valued: Callable[..., torch.Tensor], scale: float, *part: Any) -> torch.Tensor:
    value = valued(*part)
    (value if scale == 1.0 else value * scale).backward()
    return value.detach()


def _nothing(inputs: tuple[Any, ...], target: Any) -> torch.Tensor:
    """Of a part whose loss is a mean over nothing."""
    del inputs, target
    return torch.zeros(())
