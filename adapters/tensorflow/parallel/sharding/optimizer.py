"""An optimizer of a model on a mesh: the arithmetic of one device, on shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from types import MethodType
from typing import Any

from dream._errors import ConfigurationError
from dream.adapters.keras.optimizer import adopt_clipping, hold, weigh_losses
from dream.adapters.tensorflow.keras import slices
from dream.adapters.tensorflow.parallel.sharding import dtensor
from dream.adapters.tensorflow.parallel.sharding.layouts import whole
from dream.adapters.tensorflow.parallel.sharding.mesh_placement import MeshPlacement
from dream.adapters.tensorflow.parallel.sharding.variables import as_they_lie
from dream.update.update import UpdateOptions

stepping: ContextVar[bool] = ContextVar("dream.split_step", default=False)
"""Whether a step of dream's is being traced."""


def take(optimizer: Any, placement: MeshPlacement, update_options: UpdateOptions) -> Any:
    """The optimizer, whose `apply` from now on takes gradients of variables on the mesh. One that
    scales losses is seen by the block before it knows the one within; the step brings it again."""
    adopt_clipping(optimizer, update_options)
    inner = vars(optimizer).get("inner_optimizer")
    if inner is not None:
        take(inner, placement, update_options)
    if "apply" in vars(optimizer):
        return optimizer

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        if not stepping.get():
            raise _by_hand(self)
        if hold(self, grads, trainable_variables):
            return
        own = type(self).apply
        with as_they_lie():
            own(self, [laid(g, placement) for g in slices.dense(grads, self)], trainable_variables)

    def build(self: Any, variables: Any) -> None:
        with placement.laying_out_states(variables):
            type(self).build(self, variables)

    optimizer.apply = MethodType(apply, optimizer)
    optimizer.build = MethodType(build, optimizer)
    weigh_losses(optimizer)
    return optimizer


def refuse_by_hand(optimizer: Any) -> Any:
    """The optimizer, whose `apply` is dream's step's alone."""
    inner = vars(optimizer).get("inner_optimizer")
    if inner is not None:
        vars(inner).pop("apply", None)  # it is applied by the outer one

    def apply(self: Any, *_: Any, **__: Any) -> None:
        raise _by_hand(self)

    optimizer.apply = MethodType(apply, optimizer)
    return optimizer


def laid(gradient: Any, placement: MeshPlacement) -> Any:
    """A gradient in the parts that the optimizer takes."""
    if gradient is None:
        return None
    shape = tuple(gradient.shape)
    specs = placement.layouts.of_gradient(shape)
    if specs is None:
        return gradient
    # First whole: else DTensor computes it in parts from the start, which not every operation can.
    gradient = dtensor.relaid(gradient, placement.mesh, whole(shape))
    return dtensor.relaid(gradient, placement.mesh, specs) if any(specs) else gradient


def _by_hand(optimizer: Any) -> ConfigurationError:
    return ConfigurationError(
        "The variables of this optimizer lie in parts, and only dream's step reaches them. "
        f"Received: {type(optimizer).__name__}.apply outside a dream step. Take the step by "
        "strategy.train_step(model, loss, optimizer), or use model.fit."
    )
