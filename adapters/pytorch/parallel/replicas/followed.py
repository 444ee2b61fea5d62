"""A user's loop in one process: which batch its models were called on, and in what precision."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, final
from weakref import WeakSet

import torch
from torch import nn

from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.patches import Patches
from dream.adapters.pytorch.update.scaling import started
from dream.adapters.pytorch.update.training import Training
from dream.adapters.pytorch.update.weighing import MicroWeights
from dream.collectives import Communicator

_differentiating: ContextVar[bool] = ContextVar("dream.differentiating", default=False)
"""Layers on devices of their own are differentiated by backward passes within one."""


@final
class Followed:
    """Where batches come in micro-batches, what backward starts from is weighed. (Models in one
    process share one loss, so there is no need to weigh each one's gradients.)

    called: whether a model was called in training since the last backward.
    """

    def __init__(self, training: Training, communicator: Communicator, shares: Shares) -> None:
        self._training, self._shares = training, shares
        updates = training.updates
        self._micro = None if updates is None else MicroWeights(communicator, updates)
        self._models: WeakSet[nn.Module] = WeakSet()
        self._weight = 1.0
        self.called = False

    @property
    def gathering(self) -> list[nn.Parameter]:
        return [parameter for model in self._models for parameter in model.parameters()]

    def enter(self, patches: Patches) -> None:
        if self._training.runs_models:
            patches.replace(torch.autograd, "backward", self._weighed(torch.autograd.backward))

    def call(
        self,
        model: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The user calls a model. forward: what runs it."""
        if not (self._training.runs_models and torch.is_grad_enabled()):
            return self._beside(model, forward, args, kwargs)
        self._begin(model, (*args, *kwargs.values()))
        precision = self._training.precision
        if precision is None:
            return forward(*args, **kwargs)
        return precision.call(forward, args, kwargs)

    def _beside(
        self,
        model: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        precision = self._training.precision
        if precision is None:
            return forward(*args, **kwargs)
        return precision.call_beside(model, forward, args, kwargs)

    def weigh(self, loss: Any, count: float) -> Any:
        """The user says what the loss is the mean over; the batch is whole, or in micro-batches."""
        self._weight = 1.0
        return loss if self._micro is None else self._micro.weigh(loss, count)

    def _begin(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        updates, scaling = self._training.updates, self._training.scaling
        self.called = True
        if (precision := self._training.precision) is not None:
            precision.cast(model)
        if scaling is not None:
            scaling.loop_calls()
        if updates is not None:
            share = self._shares.of(inputs)
            updates.begin(share)
            self._weight = 1.0 if share is None else share.weight
            if model not in self._models:
                updates.held.watch(p for p in model.parameters() if p.requires_grad)
        self._models.add(model)

    def _weighed(self, run: Callable[..., None]) -> Callable[..., None]:
        @wraps(run)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            within = _differentiating.get()
            if not within:
                self.called = False
                if self._weight != 1.0:
                    tensors, grad_tensors = started(tensors, grad_tensors, self._weight)
            token = _differentiating.set(True)
            try:
                run(tensors, grad_tensors, *args, **kwargs)
            finally:
                _differentiating.reset(token)

        return backward
