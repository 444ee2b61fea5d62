"""What a pipeline's models do when they are called by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import fx, nn

from dream._errors import Unsupported
from dream.adapters.pytorch.keras.entry import refuse_keras
from dream.adapters.pytorch.parallel.split.inside import called_by_hand
from dream.adapters.pytorch.parallel.split.pipeline_model import PipelineModel
from dream.adapters.pytorch.slot import Slot, set_slot


def wrap_init(init: Callable[..., None], strategy: str) -> Callable[..., None]:
    """`Module.__init__` that has the training calls of the module refused."""

    @wraps(init)
    def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        refuse_keras(module, strategy)
        init(module, *args, **kwargs)
        if not isinstance(module, fx.GraphModule):
            set_slot(module, ByHand(module))

    return wrapped


def _trains(module: nn.Module) -> bool:
    """Whether the user's own loop calls the module to train it."""
    return (
        torch.is_grad_enabled()
        and called_by_hand()
        and any(parameter.requires_grad for parameter in module.parameters())
    )


def _refuse(module: nn.Module) -> Unsupported:
    return Unsupported(
        f"A pipeline owns the training step. Received: a call of {type(module).__name__} with "
        "gradients on. Write model, optimizer, batches = strategy.prepare(model, optimizer, "
        "data); step = strategy.train_step(model, loss, optimizer); then step(*batch) for each "
        "batch. To predict, call it under torch.no_grad()."
    )


@final
class ByHand(Slot):
    """Takes the calls of a module made in the block, and of parts of one that is prepared."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _trains(self.module):
            raise _refuse(self.module)
        return self.inner(*args, **kwargs)


@final
class Prepared(Slot):
    """Takes the calls of a model in stages: to predict, on all its ranks together."""

    def __init__(self, pipeline: PipelineModel) -> None:
        super().__init__(pipeline.model)
        self._pipeline = pipeline

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _trains(self.module):
            raise _refuse(self.module)
        return self._pipeline.predicted(args, kwargs)
