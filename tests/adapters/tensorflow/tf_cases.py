"""What a process does in the tests of the TensorFlow adapter. Imported by its ranks alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import dream
from dream._strategy import Strategy

SAMPLES, BATCH, EPOCHS, CLASSES, WORDS = 61, 20, 3, 5, 7
"""The last batch of an epoch has one sample: at 2 and 3 ranks some have none."""


def told(action: Callable[[], Any]) -> Any:
    """What it gives, or the error it raises, in words."""
    try:
        return action()
    except (dream.DreamError, tf.errors.OpError) as error:
        return f"{type(error).__name__}: {error}"


def numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, and how many things each sample counts for."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(SAMPLES, 12)).astype(np.float32)
    targets = generator.integers(0, CLASSES, SAMPLES)
    return inputs, targets, generator.integers(0, 4, SAMPLES).astype(np.float32)


def dense(*more: keras.Layer) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(16, "relu", kernel_regularizer=keras.regularizers.L2(1e-2)),
            *more,
            keras.layers.Dense(CLASSES),
        ]
    )


def crossentropy(prediction: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """A loss as a user writes it."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=prediction)
    )


def trained(
    strategy: Strategy,
    optimizer: keras.optimizers.Optimizer,
    *,
    model: keras.Model | None = None,
    loss: Any = crossentropy,
    weight: Any = None,
    with_counts: bool = False,
    words: bool = False,
) -> tuple[list[np.ndarray], list[float]]:
    """Weights and losses after some epochs of the explicit form."""
    inputs, targets, counts = numbers()
    if words:
        inputs = (np.abs(inputs) * 10).astype(np.int32) % WORDS
    arrays = (inputs, np.stack([targets, counts], 1)) if with_counts else (inputs, targets)
    data = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)
    model, optimizer, batches = strategy.prepare(model or dense(), optimizer, data)
    step = strategy.train_step(model, loss, optimizer, weight=weight)
    losses = [float(step(*batch)) for _ in range(EPOCHS) for batch in batches]
    return [np.asarray(v) for v in model.weights], losses


def counted(prediction: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """The mean over things, of which a sample has several or none. target: shape (n, 2)."""
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.cast(target[:, 0], tf.int32), logits=prediction
    )
    counts = tf.cast(target[:, 1], tf.float32)
    return tf.reduce_sum(each * counts) / tf.reduce_sum(counts)


def momentum(**more: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9, **more)


def training_cases(strategy: Strategy, names: Sequence[str] = ()) -> dict[str, Any]:
    """Cases, from weights that differ between ranks where a seed is not set. names: those that are
    wanted, if not all."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    each = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    rank = strategy.topology.rank

    def embedding() -> keras.Model:
        return keras.Sequential(
            [
                keras.layers.Embedding(WORDS, 6),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(CLASSES),
            ]
        )

    cases: dict[str, Callable[[], Any]] = {
        "momentum": lambda: trained(strategy, momentum(), loss=loss),
        "adamw": lambda: trained(strategy, keras.optimizers.AdamW(0.01), loss=each),
        "clipped": lambda: trained(strategy, momentum(global_clipnorm=0.1)),
        "accumulated": lambda: trained(strategy, momentum(gradient_accumulation_steps=2)),
        "counted": lambda: trained(
            strategy, momentum(), loss=counted, with_counts=True,
            weight=lambda _, y: tf.reduce_sum(y[:, 1]),
        ),
        "embedding": lambda: trained(strategy, momentum(), model=embedding(), words=True),
    }  # fmt: skip
    results: dict[str, Any] = {}
    for number, (name, case) in enumerate(cases.items()):
        if not names or name in names:
            keras.utils.set_random_seed(10 * number + rank)
            results[name] = told(case)
    return results


def weighed(strategy: Strategy, parts: int) -> Any:
    """A loop by hand: of `parts` ranks each has a sample more than the one before; one device
    has them all."""
    keras.utils.set_random_seed(3)
    inputs, targets, _ = numbers()
    cuts = np.cumsum([0, *range(5, 5 + parts)])
    rank = strategy.topology.rank
    alone = strategy.topology.world_size == 1
    mine = slice(0, cuts[-1]) if alone else slice(cuts[rank], cuts[rank + 1])
    x, y = inputs[mine], targets[mine]
    model, optimizer = dense(), momentum()

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = strategy.weigh(crossentropy(model(x), y), len(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for _ in range(4):
        step()
    return [np.asarray(v) for v in model.weights]


def unweighed(rank: int) -> None:
    """A GradientTape loop over rows that a rank takes for itself."""
    inputs, targets, _ = numbers()
    inputs, targets = inputs[rank::3], targets[rank::3]
    model, optimizer = dense(), momentum()
    with tf.GradientTape() as tape:
        loss = crossentropy(model(inputs), targets)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


def evaluated(strategy: Strategy) -> dict[str, Any]:
    """The same figures from data of every kind."""
    keras.utils.set_random_seed(5)
    inputs, targets, _ = numbers()
    model = dense()
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(BATCH)
    metrics = {
        "accuracy": keras.metrics.sparse_categorical_accuracy,
        "margin": lambda prediction, target: tf.reduce_max(prediction, 1),  # noqa: ARG005
    }
    return {
        "dataset": strategy.evaluate(model, data, metrics),
        "dealt": strategy.evaluate(model, strategy.prepare(data), metrics),
        "arrays": strategy.evaluate(model, [(inputs, targets)], metrics),
    }
