"""Norms, clipping and means of gradients that are spread over ranks: each element counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from math import inf
from typing import Any, final

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils.hooks import RemovableHandle

from dream._errors import Unsupported
from dream.adapters.pytorch.private import after_backward, to_local
from dream.adapters.pytorch.update.gradients import Spread, is_finite
from dream.collectives import Communicator

Groups = tuple[distributed.ProcessGroup, ...]
_SMALL = 1e-6  # as torch's own clipping has it


@final
class SpreadGradients(Spread):
    """Gradients whose parts lie on several ranks.

    ranks: those that step together. Each has its shards of some gradients, and others whole; in
    a pipeline, whose ranks are of stages, each parameter is one rank's alone.
    """

    def __init__(self, ranks: Communicator, *, of_stages: bool = False) -> None:
        self._ranks = ranks.unchecked()  # every rank steps at the same time
        self._of_stages = of_stages

    def clip_norm(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        stages = self._ranks if self._of_stages else None
        clip_to_norm(gradients_of(parameters), largest, stages=stages)

    def clip_value(self, parameters: Sequence[nn.Parameter], largest: float) -> None:
        clip_to_value(gradients_of(parameters), largest)

    def finite(self, parameters: Sequence[nn.Parameter]) -> bool | None:
        own = [to_local(gradient) for gradient in gradients_of(parameters)]
        counts = torch.tensor([float(not is_finite(own)), float(bool(own))], dtype=torch.float64)
        infinite, some = self._ranks.all_reduce(counts, "sum").tolist()
        return None if not some else not infinite


def clipping_norm(clip: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Have torch's function see the whole of a gradient."""

    @wraps(clip)
    def to_norm(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        listed, gradients = _sharded(parameters)
        if gradients is None:
            return clip(listed, max_norm, norm_type, error_if_nonfinite, foreach)
        if error_if_nonfinite and not (total := global_norm(gradients, norm_type)).isfinite():
            raise RuntimeError(f"The total norm of order {norm_type} is not finite: {total}.")
        return clip_to_norm(gradients, float(max_norm), float(norm_type))

    return to_norm


def clipping_value(clip: Callable[..., None]) -> Callable[..., None]:
    """Have torch's other function see it too."""

    @wraps(clip)
    def to_value(parameters: Any, largest: float, foreach: bool | None = None) -> None:
        listed, gradients = _sharded(parameters)
        if gradients is None:
            clip(listed, largest, foreach)
        else:
            clip_to_value(gradients, float(largest))

    return to_value


def _sharded(parameters: Any) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
    """List the parameters, and their gradients where some are sharded."""
    listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = gradients_of(listed)
    return listed, gradients if any(isinstance(g, DTensor) for g in gradients) else None


def clip_to_norm(
    gradients: list[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    stages: Communicator | None = None,
) -> torch.Tensor:
    """Scale the gradients in place so that their global norm is at most `max_norm`. Return the norm
    that they had, shape ()."""
    total = global_norm(gradients, norm_type, stages)
    scale = torch.clamp(max_norm / (total + _SMALL), max=1.0)
    for gradient in gradients:
        to_local(gradient).mul_(scale.to(gradient.device, gradient.dtype))
    return total


def clip_to_value(gradients: list[torch.Tensor], largest: float) -> None:
    for gradient in gradients:
        to_local(gradient).clamp_(-largest, largest)


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients that there are, each as it is spread when an optimizer steps it."""
    return [_settled(p) for p in parameters if p.grad is not None]


def global_norm(
    gradients: list[torch.Tensor], norm_type: float, stages: Communicator | None = None
) -> torch.Tensor:
    """Return the norm of all gradients together, shape (). stages: the ranks that hold others, in
    float64, since each rank's sum is of other parameters."""
    if not gradients and stages is None:
        return torch.zeros(())
    dtype = None if stages is None else torch.float64
    by_groups: dict[Groups, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_groups.setdefault(_spread_over(gradient), []).append(to_local(gradient))
    parts = []
    for groups, locals_ in by_groups.items():
        part = _powers(locals_, norm_type, dtype)
        for group in groups:
            op = distributed.ReduceOp.MAX if norm_type == inf else distributed.ReduceOp.SUM
            distributed.all_reduce(part, op, group=group)
        parts.append(part)
    whole = torch.stack([p.to(parts[0].device) for p in parts]) if parts else torch.zeros(1)
    if norm_type == inf:
        return whole.amax()
    total = whole.sum()
    if stages is not None:
        total = stages.all_reduce(total.double(), "sum")
    return total.pow(1.0 / norm_type)


def _settled(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient, whose ranks' parts are added up if they have not been yet."""
    gradient = parameter.grad
    assert gradient is not None
    if not (isinstance(gradient, DTensor) and isinstance(parameter, DTensor)):
        return gradient
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
        parameter.grad = gradient
    return gradient


def _spread_over(gradient: torch.Tensor) -> Groups:
    """Return the groups whose ranks hold other elements of it."""
    if not isinstance(gradient, DTensor):
        return ()
    mesh = gradient.device_mesh
    groups = []
    for axis, placement in enumerate(gradient.placements):
        if isinstance(placement, Shard):
            groups.append(mesh.get_group(axis))
        elif not isinstance(placement, Replicate):
            raise RuntimeError(f"A gradient with an unknown placement: {placement}.")
    return tuple(groups)


def _powers(parts: list[torch.Tensor], norm_type: float, dtype: torch.dtype | None) -> torch.Tensor:
    """Return the sum of |x|^norm_type over all elements, or the largest |x|. Shape ()."""
    held = [
        torch.linalg.vector_norm(part, norm_type, dtype=dtype) for part in parts if part.numel()
    ]
    if not held:
        return parts[0].new_zeros((), dtype=dtype)
    norms = torch.stack(held)
    return norms.amax() if norm_type == inf else norms.pow(norm_type).sum()


def average(
    parameters: Sequence[nn.Parameter], loss: torch.Tensor, twins: Communicator
) -> torch.Tensor:
    """Make gradients the mean over the copies of the model; return the loss's. One call for each
    dtype. A copy without a gradient counts as zero; where none has one there is none."""
    if twins.world_size == 1:
        return loss
    trained = [p for p in parameters if p.requires_grad]
    own = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    there = torch.tensor([float(p.grad is not None) for p in trained])
    *means, mean_loss, there = twins.all_reduce([*own, loss, there])
    missing = any(p.grad is None for p in trained)
    for index, (parameter, mean) in enumerate(zip(trained, means, strict=True)):
        if not missing or there[index]:
            parameter.grad = mean
    told: torch.Tensor = mean_loss
    return told


@final
class DataAxisSum:
    """At the end of a backward pass, what it added to the gradients becomes the mean over the data
    axis, in one collective a dtype. Of an update in parts, only the last one's backward sums."""

    def __init__(self, among: Communicator) -> None:
        self._among = among.unchecked()  # the layout has been agreed on
        self._completes = True
        self._parameters: dict[int, nn.Parameter] = {}
        self._hooks: dict[int, RemovableHandle] = {}
        self._came: dict[int, torch.Tensor] = {}
        self._before: dict[int, torch.Tensor] = {}
        self._waiting: set[int] = set()  # whose gradient is partly this rank's own

    def watch(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of these from here on, where there is an axis to add along."""
        if self._among.world_size == 1:
            return
        self._parameters = {id(parameter): parameter for parameter in parameters}
        self.refresh()

    def accumulate(self, *, fresh: bool, completes: bool) -> None:
        """Begin a part of an update, added up with its last."""
        if fresh:
            self._waiting.clear()
        self._completes = completes

    def refresh(self) -> None:
        """Look at which of them are trained now."""
        wanted = {k: p for k, p in self._parameters.items() if p.requires_grad}
        for key in set(self._hooks) - set(wanted):
            self._hooks.pop(key).remove()
        for key, parameter in wanted.items():
            if key not in self._hooks:
                self._hooks[key] = parameter.register_hook(partial(self._coming, key))

    def _coming(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """Note a gradient before it is added to what is there."""
        parameter = self._parameters[key]
        if gradient.is_sparse:
            raise Unsupported(
                "Copies of a model in parts do not add up sparse gradients. Received: a sparse "
                f"gradient of shape {tuple(gradient.shape)}. Pass sparse=False, or use 'mirrored'."
            )
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            gradient = gradient.redistribute(placements=parameter.placements)
        if not self._completes:
            self._waiting.add(key)
            return gradient
        if parameter.grad is not None:
            self._before[key] = parameter.grad.clone()
        if not self._came:
            after_backward(self._add_up)
        self._came[key] = to_local(gradient)
        return gradient

    def _add_up(self) -> None:
        """Add up in the parameters' own order, which is every rank's, in one collective a dtype."""
        keys = [key for key in self._parameters if key in self._came or key in self._waiting]
        with torch.no_grad():
            means = self._among.all_reduce([self._own(key) for key in keys])
            for key, mean in zip(keys, means, strict=True):
                self._gradient(key).copy_(mean)
                if key in self._before and key not in self._waiting:
                    self._gradient(key).add_(to_local(self._before[key]))
        self._came.clear()
        self._before.clear()
        self._waiting.clear()

    def _own(self, key: int) -> torch.Tensor:
        """Return this rank's gradient: what came, and what waited, beside which what was global
        before is its own mean."""
        came = self._came.get(key)
        if came is None:
            return self._gradient(key)
        if key in self._waiting and key in self._before:
            return came + to_local(self._before[key])
        return came

    def _gradient(self, key: int) -> torch.Tensor:
        gradient = self._parameters[key].grad
        assert gradient is not None
        return to_local(gradient)
