"""What an optimizer of a model on a mesh does: the arithmetic of one device, on shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from dream._errors import ConfigurationError
from dream.adapters.tensorflow.split import clipping, dtensor
from dream.adapters.tensorflow.split.held import as_they_lie
from dream.adapters.tensorflow.split.onto import Onto

stepping: ContextVar[bool] = ContextVar("dream.split_step", default=False)
"""Whether a step of dream's is being traced."""


def take(optimizer: Any, onto: Onto, clip_norm: float | None) -> Any:
    """The optimizer, whose `apply` from now on takes gradients of variables on the mesh. One that
    scales losses is seen by the block before it knows the one within, which clips what is scaled
    back; the step brings it again."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        if hasattr(optimizer, "inner_optimizer"):
            take(optimizer.inner_optimizer, onto, clip_norm)
        clip_norm = None
    if "apply" in vars(optimizer):
        return optimizer

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        if not stepping.get():
            raise _by_hand(self)
        own = type(self).apply
        whole = [None if g is None else tf.convert_to_tensor(g) for g in grads]
        if clip_norm is not None:
            whole = clipping.clipped(whole, clip_norm)
        with as_they_lie():
            own(self, [laid(g, onto) for g in whole], trainable_variables)

    def build(self: Any, variables: Any) -> None:
        with onto.states(variables):
            type(self).build(self, variables)

    optimizer.apply = MethodType(apply, optimizer)
    optimizer.build = MethodType(build, optimizer)
    return optimizer


def refuse_by_hand(optimizer: Any) -> Any:
    """The optimizer, whose `apply` is dream's step's alone."""

    def apply(self: Any, *_: Any, **__: Any) -> None:
        raise _by_hand(self)

    optimizer.apply = MethodType(apply, optimizer)
    return optimizer


def laid(gradient: Any, onto: Onto) -> Any:
    """A gradient in the parts that the optimizer takes."""
    if gradient is None:
        return None
    specs = onto.layouts.of_gradient(tuple(gradient.shape))
    return gradient if specs is None else dtensor.relaid(gradient, onto.mesh, specs)


def _by_hand(optimizer: Any) -> ConfigurationError:
    return ConfigurationError(
        "The variables of this optimizer lie in parts, and only dream's step reaches them. "
        f"Received: {type(optimizer).__name__}.apply outside a dream step. Take the step by "
        "strategy.train_step(model, loss, optimizer), or use model.fit."
    )
