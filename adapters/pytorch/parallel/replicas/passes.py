"""The explicit step of replicas in one process."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, final

import torch
from torch import nn

from dream._adapter import Loss, Weight
from dream._patches import value_set
from dream.adapters.pytorch.data.reading.rows import rows_of
from dream.adapters.pytorch.loss.calls import Bearer, Numbers, TrainingCall
from dream.adapters.pytorch.loss.terms import Term, terms_of
from dream.adapters.pytorch.optimizer import Training
from dream.adapters.pytorch.parallel.inner_calls import running_layers
from dream.adapters.pytorch.parallel.replicas.calls import ReplicatedCalls, differentiating
from dream.adapters.pytorch.train_step import Batch, Passes, check_scalar
from dream.adapters.pytorch.update.weigh import count_of
from dream.data.partition import Share, split

_Part = tuple[torch.Tensor, float | None]
"""A part's loss, and what it is the mean over: 0.0 for a sum, None where that is not known."""


@final
class _Copies(Bearer):
    """Stands for the copies of a model, whose outputs are apart: they need no messages."""

    waits = completes = False

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @property
    def trained(self) -> list[nn.Parameter]:
        return [*self._model.parameters()]

    def ride(self, message: Numbers) -> bool:
        return False

    def send(self, message: torch.Tensor) -> None:
        return None

    def received(self) -> Numbers:
        return ()


@final
class OnEach(Passes):
    """The loss is computed in each place, so that no device has every output: where its graph says
    what it is the mean of. Any other is taken of all outputs together, as in a loop."""

    def __init__(
        self, calls: ReplicatedCalls, loss: Loss, weight: Weight | None, training: Training
    ) -> None:
        """weight: counts the things that a loss is the mean over."""
        self._calls, self._loss, self._weight = calls, loss, weight
        self._training, self._copies = training, _Copies(calls.module)
        self._gathers = training.precision is not None
        self._value = torch.zeros(())

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        inputs, target = split(batch)
        values = None
        if not self._gathers:
            values = self._in_places(inputs, target)
            self._gathers = values is None
        values = [self._of_all(inputs, target)] if values is None else values
        total = self._differentiate([value * weight for value in values])
        self._value = total if first else self._value + total

    def told(self) -> torch.Tensor:
        return self._value

    def _in_places(self, inputs: tuple[Any, ...], target: Any) -> list[torch.Tensor] | None:
        """The losses that add up to that of the batch; None where they are not known to."""
        act = partial(self._part, rows_of(inputs) or 1)
        parts: list[_Part] | None = self._calls.each(inputs, target, act, _known)
        if parts is None:
            return None
        counts = [count or 0.0 for _, count in parts]
        if not any(counts):  # sums
            return [value for value, _ in parts]
        whole = sum(counts)
        return [value * (n / whole) for (value, _), n in zip(parts, counts, strict=True) if n]

    def _part(self, total: int, part: Any, target: Any, output: Any) -> _Part:
        call = TrainingCall(self._copies, Share(rows_of(part) or 1, total, 2), [])
        call.mark(output)
        value = check_scalar(self._loss(output, target))
        if self._weight is not None:
            return value, count_of(self._weight(*part[0], target))
        terms = terms_of(value, [call]) if value.grad_fn is not None else []
        return value, _count(terms[0]) if len(terms) == 1 else None

    def _of_all(self, inputs: tuple[Any, ...], target: Any) -> torch.Tensor:
        if self._training.precision is not None:
            self._training.precision.cast(self._calls.module)
        output = self._training.call(self._calls.shared, inputs, {})
        with running_layers():
            return check_scalar(self._loss(output, target))

    def _differentiate(self, values: list[torch.Tensor]) -> torch.Tensor:
        """Their gradients, in the model's own parameters; what they add up to."""
        scaling = self._training.scaling
        scale = 1.0 if scaling is None else scaling.own
        roots = [value * scale for value in values if value.requires_grad]
        scaled = nullcontext() if scaling is None else scaling.scaled()
        with scaled, value_set(differentiating, True):
            torch.autograd.backward(roots)
        home = values[0].device
        return torch.stack([value.detach().to(home) for value in values]).sum()


def _known(parts: list[_Part]) -> bool:
    return all(count is not None for _, count in parts)


def _count(term: Term) -> float | None:
    """What a loss is the mean over; 0.0 for a sum; None where it is anything else."""
    if term.unknown or term.noticed or term.divided is not None or term.floor is not None:
        return None
    match term.kind:
        case "count":
            return None if term.count is None else float(term.count)
        case "mean":
            return float(term.numel) if term.numel > 0 else None
        case "sum":
            return 0.0
        case _:
            return None
