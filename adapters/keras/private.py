"""Keras's private names that dream needs in several places, a function each: those of the releases
that pyproject.toml allows, held by tests/adapters/keras/test_keras_private.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any

import keras
from keras import tree
from keras.src.backend import convert_to_tensor
from keras.src.backend import numpy as backend_numpy
from keras.src.backend import random as backend_random
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.variables import AutocastScope, get_autocast_scope
from keras.src.losses import loss as loss_module

__all__ = ["backend_numpy", "backend_random", "convert_to_tensor", "tree"]


def build(model: Any, batch: Any) -> None:
    """Create the variables of the model, its metrics, loss and optimizer.

    batch: KerasTensors in the structure that the model is given.
    """
    if has_call(model):
        model._symbolic_build(data_batch=batch)


def has_call(model: Any) -> bool:
    """Whether a model is called as a whole; those of several parts that train each other may not
    be."""
    return type(model).call is not keras.Model.call


def has_own_parts(model: Any) -> bool:
    """Whether a model's call is made of more than Keras's layers: of layers or a call of the
    user's own, of functions, or of operations between layers."""
    layers = layers_of(model)
    calls = [type(layer).call for layer in layers]
    between = [op for layer in layers for op in getattr(layer, "operations", ())]
    return (
        any(not call.__module__.startswith("keras.") for call in calls)
        or any(isinstance(layer, keras.layers.Lambda) for layer in layers)
        or any(not isinstance(op, keras.Layer) for op in between)
    )


def unbuilt_parts(model: Any) -> list[str]:
    """Name the layers of a model that have no variables yet."""
    return [part.name for part in layers_of(model) if part is not model and not part.built]


def awaits_batch(model: Any) -> bool:
    """Whether something of a model is not built, so that Keras reads a batch before it trains."""
    parts = (model._compile_metrics, model._compile_loss)
    return not all(part.built for part in (*layers_of(model), *(p for p in parts if p is not None)))


def build_but_optimizer(model: Any, batch: Any) -> None:
    """Do the same, leaving the optimizer's state to be made otherwise."""
    waiting = [v for v in vars(model).values()
               if isinstance(v, keras.optimizers.Optimizer) and not v.built]  # fmt: skip
    for optimizer in waiting:
        optimizer.built = True
    try:
        build(model, batch)
    finally:
        for optimizer in waiting:
            optimizer.built = False


def layers_of(model: Any) -> list[Any]:
    """Return the model and all the layers in it."""
    return list(model._flatten_layers())


def children(layer: Any) -> list[Any]:
    """Return the layers right in a layer; of a functional model in the order of their calls."""
    if isinstance(layer, keras.Model):
        return list(layer.layers)
    return list(layer._flatten_layers(include_self=False, recursive=False))


def own_states(layer: Any) -> list[Any]:
    """Return the layer's own variables that gradients do not change (its layers' are not among
    them)."""
    return [v for v in layer._non_trainable_variables if not v.trainable]


def replace_clipping(optimizer: Any, clip: Callable[[list[Any]], list[Any]]) -> None:
    """Have an optimizer clip by `clip`, which is given all gradients of an update."""

    def clipped(_: Any, gradients: Any) -> list[Any]:
        return clip(list(gradients))

    optimizer._clip_gradients = MethodType(clipped, optimizer)


def replace_moments(layer: Any, moments: Callable[..., Any]) -> None:
    """Have a BatchNormalization take its batch's mean and variance from `moments(own, layer,
    inputs, mask)`, once."""
    if "_moments" not in vars(layer):
        own = layer._moments
        object.__setattr__(
            layer, "_moments", lambda inputs, mask: moments(own, layer, inputs, mask)
        )


def reduction_axes(layer: Any) -> tuple[int, ...]:
    """Return the axes that a BatchNormalization takes its statistics over."""
    return tuple(layer._reduction_axes)


def replace_call(layer: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Have a layer compute by `make(call)`, once. It knows the signature of its call already."""
    _forget_later(layer)
    if "call" not in vars(layer):
        object.__setattr__(layer, "call", make(layer.call))


def casting() -> Callable[[], AbstractContextManager[Any]]:
    """Return what opens the scope that variables are cast in here, elsewhere."""
    scope = get_autocast_scope()
    return lambda: AutocastScope(None if scope is None else scope.dtype)


_LATER = "dream_before_call"


def before_first_call(layer: Any, act: Callable[[], None]) -> None:
    """Have `act()` done when a layer, built by then, is first called."""
    if "call" in vars(layer):
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        _forget_later(layer)
        act()
        return layer.call(*args, **kwargs)

    object.__setattr__(layer, _LATER, True)
    object.__setattr__(layer, "call", call)


def _forget_later(layer: Any) -> None:
    if _LATER in vars(layer):
        del layer.__dict__[_LATER], layer.__dict__["call"]


def knows_training(layer: Any) -> bool:
    """Whether a layer's call takes `training`."""
    return bool(layer._call_has_training_arg)


def calls_of(layer: Any, model: Any) -> list[Any]:
    """Return the calls of a layer that a functional model is made of: each with its `input_tensors`
    and `output_tensors`."""
    own = {id(call) for calls in model._nodes_by_depth.values() for call in calls}
    return [call for call in layer._inbound_nodes if id(call) in own]


def flat_inputs(model: Any, inputs: Any) -> list[Any]:
    """Flatten a functional or sequential model's inputs, in the order of `model.inputs`."""
    if hasattr(model, "_standardize_inputs"):
        return list(model._standardize_inputs(inputs))
    return list(tree.flatten(inputs))


def output_structure(model: Any) -> Any:
    """Return how the outputs of a functional or sequential model are nested."""
    return getattr(model, "_outputs_struct", model.outputs[0])


def all_states(layer: Any) -> list[Any]:
    """Return the variables of the layer and those in it that a call may change."""
    seeds = [seed.state for each in layers_of(layer) for seed in own_seeds(each)]
    found = {id(v): v for v in (*layer.non_trainable_variables, *seeds)}
    return list(found.values())


def added_losses(layer: Any) -> int:
    """Count the losses that calls of the layer and those in it have added."""
    return sum(len(each._losses) for each in layers_of(layer))


def added(model: Any) -> list[Any]:
    """Return the losses that calls of the model and of its layers have added, penalties of
    variables left out."""
    return [loss for layer in layers_of(model) for loss in layer._get_own_losses()]


def added_by(model: Any, x: Any, value: Callable[[Any], Any] | None, training: bool) -> list[Any]:
    """Return the losses that a call adds. In a `rehearsal`. value: as there."""
    values = [(v, value(v)) for v in model.variables] if value else None
    with keras.StatelessScope(state_mapping=values, collect_losses=True):
        model(x, training=training)
        return added(model)


@contextmanager
def rehearsal(model: Any, value: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    """Inside, which is Keras's scope, the model may be called and its loss computed: variables,
    added losses and plain numbers that layers count with stay. value: gives what a variable is
    inside; None for what it is."""
    value = value or (lambda variable: variable.value)
    layers = layers_of(model)
    numbers = [
        {n: v for n, v in vars(layer).items() if type(v) in (int, float)} for layer in layers
    ]
    kept = [(list(layer._losses), set(layer._loss_ids)) for layer in layers]
    values = [(v, value(v)) for v in model.variables if not v.trainable]
    trained = [(v, value(v)) for v in model.trainable_variables]  # not copies: a tape watches those
    try:
        with keras.StatelessScope(state_mapping=values, collect_losses=True) as scope:
            for pair in trained:
                scope.add_update(pair)
            yield scope
    finally:
        for layer, (losses, ids), own in zip(layers, kept, numbers, strict=True):
            layer.__dict__.update(own)
            layer._losses[:] = losses
            layer._loss_ids.clear()
            layer._loss_ids.update(ids)


def is_rehearsal(flat: Any) -> bool:
    """Whether a call only finds out shapes, or keeps its changes of state to itself."""
    return in_stateless_scope() or any(isinstance(x, keras.KerasTensor) for x in flat)


def own_seeds(layer: Any) -> list[Any]:
    """Return the seed generators of the layer itself."""
    return list(layer._seed_generators)


def shared_seed() -> Any | None:
    """Return the seed generator behind `keras.random` where none is named, if it was used."""
    # a constant of Keras's from 3.13 on, and written out before
    found = global_state.get_global_attribute("global_seed_generator")
    return getattr(found, "made", found)  # of one that is made on demand


def share_seed(generator: Any) -> None:
    """Have this thread draw from a shared seed generator, which Keras knows a thread at a time."""
    global_state.set_global_attribute("global_seed_generator", generator)


def mask_of(tensor: Any) -> Any:
    """Return the mask that a tensor carries, or None."""
    return get_keras_mask(tensor)


def loss_tracker(model: Any) -> Any:
    """Return the metric behind the log named "loss"; None before compile."""
    return model._loss_tracker


def compiled_losses(model: Any) -> list[Any]:
    """Return the Loss objects of a built, compiled model."""
    compiled = model._compile_loss
    if compiled is None or not compiled.built:
        return []
    return [entry.loss for entry in compiled._flat_losses]


def replace_losses(model: Any, make: Callable[[Any], Any]) -> None:
    """Have a built, compiled model compute each of its losses by `make(loss)`."""
    compiled = model._compile_loss
    if compiled is not None and compiled.built:
        entries = [entry._replace(loss=make(entry.loss)) for entry in compiled._flat_losses]
        compiled._flat_losses = entries


def masked_weights(weights: Any, mask: Any, dtype: Any, reduction: str) -> Any:
    """Return the weights by which a loss weighs its values, where there are weights or a mask."""
    if mask is not None:
        mask = convert_to_tensor(mask, dtype=dtype)
    if weights is not None:
        weights = convert_to_tensor(weights, dtype=dtype) * 1  # on torch they are masked in place
    return loss_module.apply_mask(weights, mask, dtype=dtype, reduction=reduction)


def given_metrics(model: Any) -> list[Any]:
    """Return the metric objects that were given to compile."""
    compiled = model._compile_metrics
    if compiled is None:
        return []
    given = tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return [metric for metric in given if isinstance(metric, keras.metrics.Metric)]


def figure_of(metric: Any, y_true: Any, y_pred: Any) -> Any:
    """Return what the function of a MeanMetricWrapper gives."""
    return metric._fn(y_true, y_pred, **metric._fn_kwargs)


def leaf_metrics(metrics: Iterable[Any]) -> list[Any]:
    """Open containers of metrics, down to those that a user would name."""
    found: list[Any] = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        found.extend(leaf_metrics(inner) if isinstance(inner, list) else [metric])
    return found


def makes_floats_of_results() -> bool:
    """Whether `get_metrics_result` gives floats, as in Keras 3.12; later ones give the results."""
    return "pythonify_logs" in keras.Model.get_metrics_result.__code__.co_names


def output_losses(model: Any) -> list[Any]:
    """Return the metrics that keep the loss of each of several outputs."""
    return [] if model._compile_loss is None else list(model._compile_loss.metrics)


def compiled_loss(model: Any) -> Any:
    """Return what computes the loss that a model was compiled with, of (y, y_pred,
    sample_weight)."""
    return model._compile_loss


def first_epoch(model: Any) -> int | None:
    """Return the epoch that a callback (BackupAndRestore) wants training to start at."""
    return model._initial_epoch  # type: ignore[no-any-return]


def set_first_epoch(model: Any, epoch: int | None) -> None:
    model._initial_epoch = epoch


def symbolic(batch: Any) -> Any:
    """Return KerasTensors like the tensors of a batch, their first dim open where a graph is
    traced. On torch Keras would call what it tries twice for that, and once else."""
    traced = keras.backend.backend() != "torch"

    def like(t: Any) -> Any:
        shape = (None, *t.shape[1:]) if traced else tuple(t.shape)
        return keras.KerasTensor(shape, dtype=str(keras.backend.standardize_dtype(t.dtype)))

    return tree.map_structure(lambda t: None if t is None else like(t), batch)


def counter(optimizer: Any) -> Any:
    """Return the variable in which an optimizer counts the gradients that it was given."""
    return optimizer._iterations


def numbers_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer that scripts read as numbers."""
    found = [vars(optimizer).get(name) for name in ("_iterations", "_learning_rate")]
    return [v for v in found if isinstance(v, keras.Variable)]


def known_to(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer was built over."""
    return list(optimizer._trainable_variables)


def decays(optimizer: Any, variable: Any) -> bool:
    """Whether an optimizer's weight decay acts on a variable."""
    return bool(optimizer._use_weight_decay(variable))


def schedule_of(optimizer: Any) -> Any:
    """Return what gives an optimizer its learning rate, where that is no number."""
    return optimizer._learning_rate


def results(model: Any, logs: Any) -> dict[str, Any]:
    """Return the figures of an epoch, as `fit` tells them. logs: those of its last step."""
    return dict(model._get_metrics_result_or_logs(logs))


def validates(model: Any, epoch: int, frequency: Any) -> bool:
    """Whether `fit` validates after an epoch."""
    return bool(model._should_eval(epoch, frequency))


def made_by(tensor: Any) -> Any:
    """Return the layer or operation that a KerasTensor comes from."""
    return tensor._keras_history.operation


def loss_scaling() -> list[tuple[Any, str]]:
    """Return (module, name) of the functions that divide a loss by the number of replicas."""
    return [
        (loss_module, "scale_loss_for_distribution"),
        (loss_module, "unscale_loss_for_distribution"),
    ]


def variable_initializer() -> tuple[Any, str]:
    """Return (class, name) of the method that gives a Keras variable its first value."""
    return keras.Variable, "_initialize"
