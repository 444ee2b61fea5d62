"""Before a distributed model trains: the same variables on every rank, rank 0's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from dream._errors import ConfigurationError, Unsupported
from dream._layout import check_same
from dream._log import logger
from dream.adapters.keras import alike, metrics, private
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.update import batch_norm, recomputing
from dream.mixed.consistency import agree as agree_with


def prepare(model: Any, engine: Engine, example: Any) -> None:
    """Build what is not built yet, and refuse what cannot be exact.

    example: a batch as the model is given it, of any length.
    """
    metrics.check_kinds(model)
    batch_norm.take(model, engine)
    with engine.creating():
        private.build(model, private.symbolic(example))
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    recomputing.adopt(model, engine)
    metrics.check_starts(model)
    check_losses(model)


def agree(model: Any, engine: Engine) -> None:
    """Compare the variables of the model and its optimizers over the ranks, and take rank 0's
    values: before fit and its like."""
    if engine.mixed:
        mine = alike.account_of_fit(model, optimizers_of(model), engine.framework)
        agree_with(engine.communicator, mine)
        same_weights(model, engine)
    else:
        agree_on(model, optimizers_of(model), engine)


def agree_on(model: Any, optimizers: Sequence[Any], engine: Engine) -> None:
    """The same between ranks of one framework."""
    layout = [*alike.by_name(model.weights), *alike.states_layout(optimizers)]
    check_same(engine.communicator.all_gather_object(layout))
    variables = [*model.weights, *(v for o in optimizers for v in o.variables)]
    alike.take_rank_0s(variables, engine.communicator)


def same_weights(model: Any, engine: Engine) -> float:
    """Rank 0's weights and optimizer states on every rank; how far this rank's weights were from
    them."""
    states = [v for o in optimizers_of(model) for v in o.variables]
    alike.take_rank_0s(states, engine.communicator)
    return alike.take_rank_0s(model.weights, engine.communicator)


def offset_seeds(model: Any, engine: Engine) -> None:
    """Other ranks draw other masks: seed generators move by the rank, rank 0's stay."""
    generators = [g for layer in private.layers_of(model) for g in private.own_seeds(layer)]
    for state in {id(g): g.state for g in (*generators, private.shared_seed()) if g}.values():
        engine.offset_seed(state)
    engine.offset_generators()


def tell_of_statistics(model: Any, engine: Engine | None = None) -> None:
    """One line about layers whose batch statistics are each replica's own."""
    whole = engine is not None and engine.synchronises
    local = [] if whole else local_statistics(model)
    if local:
        logger.info(
            "%s normalises each replica's share by itself, which cannot equal one device; moving "
            "statistics are the mean over the replicas", ", ".join(local),
        )  # fmt: skip


def local_statistics(model: Any) -> list[str]:
    """The names of the layers that normalise each replica's share by itself."""
    return [
        layer.name
        for layer in private.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    ]


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers that the model holds as attributes, built or not."""
    found = {id(v): v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)}
    return list(found.values())


def check_losses(model: Any) -> None:
    """Only a loss that is a mean over samples is the mean of the replicas' means."""
    for loss in private.compiled_losses(model):
        if loss.reduction not in ("sum_over_batch_size", "mean"):
            raise Unsupported(
                "This loss is not a mean over samples, so replicas cannot share it. Received: "
                f"{type(loss).__name__}(reduction={loss.reduction!r}). Use "
                "reduction='sum_over_batch_size'."
            )


def check_compilation(model: Any, engine: Engine, asked: Any) -> None:
    """XLA cannot compile collectives: off where Keras would choose it, refused where `asked` for.
    TensorFlow cannot put the steps of several devices into one loop."""
    if asked is True:
        raise Unsupported(
            "A compiled step cannot hold the sum over the replicas. Received: jit_compile=True. "
            "Leave jit_compile out."
        )
    if model.jit_compile:
        model.jit_compile = False
    if engine.mixed and model.steps_per_execution > 1:
        raise Unsupported(
            "Ranks of two frameworks take one step at a time. Received: "
            f"steps_per_execution={model.steps_per_execution}. Leave it at 1."
        )
    if engine.pooled and model.steps_per_execution > 1:
        raise Unsupported(
            "Several devices of one process take one step at a time. Received: "
            f"steps_per_execution={model.steps_per_execution}. Leave it at 1, or start several "
            "processes with `dream run`."
        )


def check_compiled(model: Any) -> None:
    if not model.compiled:
        raise ConfigurationError(
            "The model has no optimizer and loss yet. Received: compiled=False. Call "
            "model.compile first."
        )
