"""Refusals of what would be another model in microbatches and stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.adapters.tensorflow.private import assigned, draws_in
from dream.pipeline.partition import Partition


def seeds_in(model: Any) -> list[Any]:
    """Return the states of the seed generators that the model's layers draw from."""
    generators = [g for layer in private.layers_of(model) for g in private.own_seeds(layer)]
    return list({id(g.state): g.state for g in generators}.values())


def check_statistics(model: Any) -> None:
    for layer in private.layers_of(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise Unsupported(
                "A microbatch is normalised by itself, which is not what one device does. "
                f"Received: {layer.name!r} (BatchNormalization) with several microbatches. Use "
                "microbatches=1, LayerNormalization, or 'sharded'."
            )


def check_seeds(partition: Partition) -> None:
    """Refuse a seed generator that layers of several stages draw from, one after the other."""
    owner: dict[int, int] = {}
    for index, stage in enumerate(partition.stages):
        for seed in seeds_in(stage.model):
            if owner.setdefault(id(seed), index) != index:
                raise Unsupported(
                    "Layers of several stages draw from one generator by turns, and stages run at "
                    f"the same time. Received: {seed.path!r}, shared by layers of stages "
                    f"{owner[id(seed)]} and {index}. Give each layer a "
                    "keras.random.SeedGenerator of its own."
                )


def check_drawn(model: Any) -> None:
    """In the graph of a stage: refuse draws from the generator that all layers share."""
    shared = private.shared_seed()
    if shared is not None and assigned([shared.state.value]):
        raise Unsupported(
            "Stages draw at the same time, so in no one order from the generator that keras.random "
            "has where none is named. Received: keras.random without seed= in a layer of "
            f"{_names(model)}. Give it a keras.random.SeedGenerator."
        )


def check_kept(model: Any, states: Sequence[Any]) -> None:
    """In the graph of a stage that trains: refuse states that change with each microbatch."""
    changed = assigned(states)
    if changed:
        names = ", ".join(repr(variable.name.partition(":")[0]) for variable in changed)
        raise Unsupported(
            "A layer's state would change with each microbatch, and once a batch on one device. "
            f"Received: {names} in {_names(model)}, with several microbatches. Use microbatches=1 "
            "in one row, or 'sharded'."
        )


def check_loss_draws(model: Any) -> None:
    """In the graph of a loss."""
    found = draws_in(tf.compat.v1.get_default_graph())
    if found:
        raise Unsupported(
            "A loss that draws random numbers would draw for each microbatch by itself. Received: "
            f"{', '.join(found)} in the loss of {model.name!r}. Draw in a layer, or use 'mirrored'."
        )


def check_masks(model: Any) -> None:
    for output in model.outputs:
        if private.mask_of(output) is not None:
            raise Unsupported(
                "The predictions carry a mask, so the loss is the mean over what is unmasked, of "
                f"which microbatches hold unequal numbers. Received: {model.name!r} with a masked "
                "output. Use strategy.train_step with weight=, or drop the mask."
            )


def check_weights(model: Any, weight: Any) -> None:
    """Refuse a mean by weights, of which microbatches hold unequal sums."""
    for loss in private.compiled_losses(model) if weight is not None else ():
        if loss.reduction == "mean_with_sample_weight":
            raise Unsupported(
                "The loss is a mean by its weights, of which microbatches hold unequal sums. "
                f"Received: {loss.name!r} with reduction='mean_with_sample_weight' and weights, in "
                "a pipeline. Use reduction='sum_over_batch_size', 'mirrored' or 'sharded'."
            )


def check_crossing(tensors: Sequence[Any]) -> None:
    """Refuse masks that would have to go from stage to stage. tensors: KerasTensors that do."""
    masked = [private.made_by(t).name for t in tensors if private.mask_of(t) is not None]
    if masked:
        raise Unsupported(
            "A mask does not pass from stage to stage. Received: a stage that ends with "
            f"{', '.join(map(repr, dict.fromkeys(masked)))}, whose output carries one. Begin "
            "stages elsewhere (stages=), or use 'mirrored' or 'sharded'."
        )


def _names(model: Any) -> str:
    layers = [each for each in model.layers if not isinstance(each, keras.layers.InputLayer)]
    return "the stage of " + ", ".join(repr(each.name) for each in layers)
