"""What a TensorFlow rank does beside torch's: the same by strategy.train_step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import mixed_fit
import numpy as np
import tensorflow as tf
from keras import layers
from mixed_data import (
    BATCH,
    CLASSES,
    EPOCHS,
    HIDDEN,
    INPUTS,
    SEED,
    WORDS,
    images,
    numbers,
    words,
)  # fmt: skip

import dream

Figures = Any
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def block(**options: Any) -> Any:
    return dream.strategy(None, seed=SEED, **options)


def sgd() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def mlp(hidden: int = HIDDEN) -> Any:
    return keras.Sequential(
        [keras.Input((INPUTS,)), layers.Dense(hidden, "relu"), layers.Dense(CLASSES)]
    )


def epochs(
    strategy: Any, arrays: tuple[np.ndarray, np.ndarray], count: int = EPOCHS
) -> Iterator[Any]:
    for epoch in range(count):
        order = strategy.order(len(arrays[0]), epoch)
        ordered = tuple(array[order] for array in arrays)
        yield from strategy.prepare(tf.data.Dataset.from_tensor_slices(ordered).batch(BATCH))


def loop(
    strategy: Any, model: Any, optimizer: Any, arrays: Any, count: int = EPOCHS, **options: Any
) -> list[float]:
    step = strategy.train_step(model, options.pop("loss", LOSS), optimizer, **options)
    return [float(step(x, y)) for x, y in epochs(strategy, arrays, count)]


def momentum() -> Figures:
    with block() as strategy:
        model = mlp()
        loop(strategy, model, sgd(), numbers())
        data = tf.data.Dataset.from_tensor_slices(numbers()).batch(BATCH)
        right = {"right": keras.metrics.sparse_categorical_accuracy}
        said = strategy.evaluate(model, strategy.prepare(data), right)
    return model.get_weights(), said["right"]


def adamw() -> Figures:
    with block() as strategy:
        model = mlp()
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01, epsilon=1e-7)
        loop(strategy, model, optimizer, numbers())
    return model.get_weights()


def outside() -> Figures:
    with block() as strategy:
        model = mlp()
    losses = loop(strategy, model, sgd(), numbers(), 1)
    assert np.isnan(losses).all()  # torch's loss is not told outside its block
    return model.get_weights()


def counted() -> Figures:
    def mean(y: tf.Tensor, said: tf.Tensor) -> tf.Tensor:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=said)
        counts = tf.cast(y, tf.float32)
        return tf.math.divide_no_nan(tf.reduce_sum(each * counts), tf.reduce_sum(counts))

    with block() as strategy:
        model = mlp()
        options = {"loss": lambda said, y: mean(y, said), "weight": lambda _, y: tf.reduce_sum(y)}
        loop(strategy, model, sgd(), numbers(), 1, **options)
    return model.get_weights()


def steps() -> Figures:
    with block() as strategy:
        model = mlp()
        losses = loop(strategy, model, sgd(), numbers(), 1)
    return model.get_weights(), losses


def sentences() -> Figures:
    embed, out = layers.Embedding(WORDS, 6), layers.Dense(CLASSES)
    with block() as strategy:
        inputs = keras.Input((6,), dtype="int64")
        x = layers.LayerNormalization()(embed(inputs))
        x = x + layers.MultiHeadAttention(2, 3)(x, x)
        model = keras.Model(inputs, out(layers.GRU(5)(x)))
        loop(strategy, model, keras.optimizers.SGD(0.1), words())
    return [embed.get_weights()[0], out.get_weights()[0]]


def pictures() -> Figures:
    with block(sync_batch_norm=False) as strategy:
        model = keras.Sequential(
            [
                keras.Input((8, 7, 2)),
                layers.Conv2D(6, 3, strides=2),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dense(CLASSES),
            ]
        )
        loop(strategy, model, sgd(), images())
    return model.get_weights()[:-1]


def keras_steps() -> Figures:
    model = mixed_fit.model_of()
    with block() as strategy:
        model, optimizer = strategy.prepare(model, keras.optimizers.AdamW(0.001))
        losses = loop(strategy, model, optimizer, numbers(), 2)
    return model.get_weights(), losses


def communicator() -> Figures:
    made = dream.communicator()
    return made.reduction, made.all_reduce(tf.ones(3) * made.rank, "sum").numpy()


def drifted(resync: int) -> Figures:
    with block(resync=resync) as strategy:
        model = mlp()
        step = strategy.train_step(model, LOSS, sgd())
        for number, (x, y) in enumerate(epochs(strategy, numbers(60), 1)):
            step(x, y)
            if number == 0:
                model.set_weights([w + 1e-3 for w in model.get_weights()])
    return model.get_weights()


CASES: dict[str, Callable[[], Figures]] = {
    "momentum": momentum, "adamw": adamw, "outside": outside, "counted": counted, "steps": steps,
    "sentences": sentences, "fit": mixed_fit.mlp, "fit batches": mixed_fit.batches,
    "fit outputs": mixed_fit.outputs, "looked up": mixed_fit.looked_up,
    "fit adamw": mixed_fit.adamw,
    "batch by batch": mixed_fit.batch_by_batch, "keras steps": keras_steps,
    "communicator": communicator,
}  # fmt: skip
TWO: dict[str, Callable[[], Figures]] = {
    "pictures": pictures, "fit pictures": mixed_fit.pictures,
}  # fmt: skip
FEW: dict[str, Callable[[], Figures]] = {"momentum": momentum, "fit": mixed_fit.mlp}


def steps_of(model: Any) -> Figures:
    with block() as strategy:
        loop(strategy, model, sgd(), numbers())


def frozen() -> Figures:
    return steps_of(mlp())


def one_step() -> Figures:
    with block() as strategy:
        x, y = numbers(4)
        strategy.train_step(mlp(), LOSS, sgd())(x, y)


def other_order() -> Figures:
    return momentum()


def fit_beside_steps() -> Figures:
    return mixed_fit.mlp()


def nothing() -> Figures:
    with block():
        return None


def gloo() -> Figures:
    with block(reduction="gloo"):
        pass


def compressed() -> Figures:
    with block(compression="float16"):
        pass


def adasum() -> Figures:
    with block(op="adasum"):
        pass


def another_seed() -> Figures:
    with block():
        pass


def own_loop() -> Figures:
    with block() as strategy:
        return strategy.weigh(tf.constant(1.0), 3)


REFUSALS: dict[str, Callable[[], Figures]] = {
    "other shape": lambda: steps_of(mlp()), "other kind": lambda: steps_of(mlp()),
    "frozen": frozen, "other order": other_order, "fit beside steps": fit_beside_steps,
    "two biases": nothing, "own sampler": nothing, "gloo": gloo, "compressed": compressed,
    "adasum": adasum, "another seed": another_seed,
    "own loop": own_loop, "frozen later": one_step, "unused": lambda: steps_of(mlp()),
    "other batches": mixed_fit.other_batches, "after all that": momentum,
    "resynced": lambda: drifted(2), "left apart": lambda: drifted(0),
}  # fmt: skip
