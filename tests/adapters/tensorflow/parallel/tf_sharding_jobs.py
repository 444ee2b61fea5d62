"""What processes do in the tests of Keras models on a mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tf_split_models import (
    accumulating,
    alone,
    data,
    entered,
    files,
    fitted,
    loss,
    momentum,
    overflowing,
    scaled,
    short,
    stepped,
    told,
    weights,
    wide,
)

import dream


def attending() -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    rows = layers.Dense(8)(layers.Reshape((4, 2))(inputs))
    rows = rows + layers.MultiHeadAttention(4, 4, name="mha")(rows, rows)
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(rows)))


def bytes_held(variables: Any) -> list[int]:
    """On each of this process's devices."""
    parts = [v.value.local() for v in variables if v.shape.rank]
    return [sum(int(tf.size(p[d])) * p[d].dtype.size for p in parts) for d in range(len(parts[0]))]


def bytes_whole(variables: Any) -> int:
    return sum(int(np.prod(v.shape)) * 4 for v in variables if v.shape.rank)


def gradients_held(strategy: Any, model: Any) -> tuple[list[int], int]:
    """(the bytes of the gradients as the optimizer is given them, on each device; of all)."""
    from dream.adapters.tensorflow.parallel.sharding import dtensor, optimizer

    placement = strategy._adapter.placement
    variables = model.trainable_variables

    @tf.function
    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss()(y, model(x, training=True))
        found = tape.gradient(value, [v.value for v in variables])
        return [optimizer.laid(g, placement) for g in found]

    x, y = data(16)
    parts = [dtensor.local(g) for g in gradients(*placement.batch((x, y)))]
    held = [sum(p[d].numpy().nbytes for p in parts) for d in range(len(parts[0]))]
    return held, bytes_whole(variables)


def layouts(model: Any) -> dict[str, list[str]]:
    return {short(v): list(v.value.layout.sharding_specs) for v in model.variables}


def of_unknown_length() -> list[Any]:
    """The iterations that Adam counts, and the weights; the same of one that adds gradients up."""
    x, y = data()
    batches = tf.data.Dataset.from_generator(
        lambda: ((x[i : i + 16], y[i : i + 16]) for i in range(0, len(x), 16)),
        output_signature=(tf.TensorSpec((None, 8), tf.float32), tf.TensorSpec((None,), tf.int64)),
    )
    found: list[Any] = []
    for steps in (None, 2):
        model = wide()
        adam = keras.optimizers.Adam(0.01, gradient_accumulation_steps=steps)
        model.compile(adam, loss())
        model.fit(batches, epochs=2, verbose=0)
        found.extend([int(adam.iterations), *weights(model)])
    return found


def batch_by_batch() -> list[Any]:
    """What train_on_batch and test_on_batch give, with weights of samples and without; the weights
    of the model."""
    x, y = data()
    model = wide()
    model.compile(momentum(), loss())
    said = [model.train_on_batch(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    said.append(model.train_on_batch(x[:16], y[:16], sample_weight=np.arange(16.0)))
    said.append(model.test_on_batch(x, y))
    return [np.array(said), *weights(model)]


def adapted() -> list[Any]:
    """The weights of a model with a layer that holds tensors which are no variables."""
    keras.utils.set_random_seed(3)
    scale = layers.Normalization()
    scale.adapt(data()[0])
    return weights(fitted(keras.Sequential([keras.Input((8,)), scale, layers.Dense(4)])))


def further() -> dict[str, Any]:
    """What `make exhaustive` alone asks of them."""
    found: dict[str, Any] = {}
    with dream.strategy("sharded", devices=2, zero=2) as strategy:
        found["zero2"] = in_parts_of(strategy)
    for zero in (1, 2):
        with dream.strategy("sharded", devices=2, zero=zero, clip_norm=0.05):
            found[f"normalised{zero}"] = weights(fitted(wide(layers.BatchNormalization())))
    with dream.strategy("single"):
        found["one"] = weights(fitted(wide()))
        found["one normalised"] = normalised()
    return found


def in_parts_of(strategy: Any) -> dict[str, Any]:
    """What a trained model ends with, and the bytes of it on each device and in all."""
    model = fitted(wide())
    states = [v for v in model.optimizer.variables if v.shape.rank]
    return {
        "weights": weights(model),
        "parameters": (bytes_held(model.variables), bytes_whole(model.variables)),
        "states": (bytes_held(states), bytes_whole(states)),
        "gradients": gradients_held(strategy, model),
    }


def normalised() -> list[np.ndarray]:
    """By one device."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05)
    return weights(fitted(wide(layers.BatchNormalization()), optimizer))


def mesh() -> dict[str, Any]:
    """Two devices of one process under the strategies of a mesh, and one device."""
    found: dict[str, Any] = {}
    for zero in (1, 3):
        with dream.strategy("sharded", devices=2, zero=zero) as strategy:
            found[f"zero{zero}"] = in_parts_of(strategy)
    with dream.strategy("sharded", devices=2, zero=3, clip_norm=0.05):
        found["normalised3"] = weights(fitted(wide(layers.BatchNormalization())))
    with dream.strategy("sharded", devices=2, zero=2, accumulate=3):
        found["accumulated"] = weights(fitted(wide()))
    with dream.strategy("sharded", devices=2, clip_norm=0.05) as strategy:
        found["keras accumulates"] = weights(fitted(wide(), accumulating()))
        clipped = wide()
        found["clipped"] = stepped(strategy, clipped), weights(clipped)
        found["scaled"] = weights(fitted(wide(), scaled()))
        found["recurrent"] = told(lambda: fitted(recurrent()))
        found["depthwise"] = told(lambda: fitted(channelwise()))
        found["spectral"] = told(lambda: fitted(spectral()))
        found["by hand"] = told(lambda: by_hand(wide()))
        found["weigh"] = told(lambda: strategy.weigh(1.0, 3))
        found["foreign"] = told(lambda: fitted(wide(Foreign())))
        found["eager"] = np.asarray(clipped(data()[0]))
        found["predicted"] = clipped.predict(data()[0], verbose=0)
    with dream.strategy("sharded", devices=2):
        found["keras clips"] = weights(fitted(wide(), momentum(clipnorm=0.02)))
        dropped = fitted(wide(layers.Dropout(0.5, seed=7)), epochs=20)
        found["dropped"] = float(dropped.evaluate(*data(), verbose=0))
        found["overflowing"] = overflowing()
        found["of unknown length"] = of_unknown_length()
        found["adapted"] = adapted()
        found["batch by batch"] = batch_by_batch()
    found["local"] = told(lambda: entered("sharded", devices=2, sync_batch_norm=False))
    found["groups"] = told(lambda: entered("sharded", devices=2, data=2))
    found["one of unknown length"] = of_unknown_length()
    found["one adapted"] = adapted()
    found["one batch by batch"] = batch_by_batch()
    with dream.strategy("model_parallel", split="tensor", devices=2):
        found["attention layouts"] = layouts(fitted(attending()))
        found["auto layouts"] = layouts(fitted(wide()))
        found["nothing"] = told(
            lambda: fitted(keras.Sequential([keras.Input((8,)), layers.Dense(4)]))
        )
    for name, plan in {
        "convolution": {"*/conv": "column"}, "typo": {"fc9": "column"}, "way": {"fc1": "diagonal"},
        "odd": {"odd": "column"},
    }.items():  # fmt: skip
        with dream.strategy("model_parallel", split="tensor", devices=2, plan=plan):
            found[name] = told(lambda: fitted(pictures()))
    with dream.strategy("model_parallel", split="tensor", devices=2,
                        plan={"*/fc1": "column", "fc2": "row"}):  # fmt: skip
        found["planned"] = layouts(planned := fitted(wide())), weights(planned)
    found["equation"] = told(lambda: entered("hybrid", split="tensor", devices=2, data=2, model=2))
    with dream.strategy("single") as strategy:
        found["one"] = weights(fitted(wide()))
        found["one normalised"] = normalised()
        found["one scaled"] = weights(fitted(wide(), momentum(global_clipnorm=0.05)))
        found["one keras clips"] = weights(fitted(wide(), momentum(clipnorm=0.02)))
        found["one overflowing"] = overflowing()
        model = wide()
        found["one clipped"] = (
            stepped(strategy, model, momentum(global_clipnorm=0.05)),
            weights(model),
        )
    with dream.strategy("single", clip_norm=0.05):
        found["one keras accumulates"] = weights(fitted(wide(), accumulating()))
    return found


class Foreign(layers.Layer):
    """A variable that Keras is not told of."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden = (lambda kept: lambda: kept)(tf.Variable(2.0))

    def call(self, x: Any) -> Any:
        return x * self._hidden()


def orders() -> dict[str, Any]:
    """A variable that a tf.function assigns and then reads, as dream has it and as DTensor does."""
    found: dict[str, Any] = {}
    with dream.strategy("sharded", devices=2):
        held = fitted(wide()).variables[0].value

        @tf.function
        def dreams() -> Any:
            held.assign(tf.ones_like(held.value()))
            held.assign_add(tf.ones_like(held.value()))
            return held.value() + 0.0

        found["dream"] = np.asarray(onto_whole(dreams(), held))
    return found


def onto_whole(tensor: Any, held: Any) -> Any:
    from dream.adapters.tensorflow.parallel.sharding import dtensor

    return dtensor.whole(tensor, held._mesh)


def recurrent() -> Any:
    return keras.Sequential(
        [keras.Input((8,)), layers.Reshape((4, 2)), layers.LSTM(4, name="memory"), layers.Dense(4)]
    )


def channelwise() -> Any:
    return keras.Sequential(
        [keras.Input((8,)), layers.Reshape((4, 2, 1)), layers.SeparableConv2D(4, 2, name="apart"),
         layers.Flatten(), layers.Dense(4)]
    )  # fmt: skip


def spectral() -> Any:
    even = layers.SpectralNormalization(layers.Dense(8), name="even")
    return keras.Sequential([keras.Input((8,)), even, layers.Dense(4)])


def pictures() -> Any:
    return keras.Sequential(
        [keras.Input((8,)), layers.Reshape((4, 2, 1)), layers.Conv2D(4, 2, name="conv"),
         layers.Flatten(), layers.Dense(5, name="odd"), layers.Dense(4, name="fc1")]
    )  # fmt: skip


def by_hand(model: Any) -> None:
    optimizer = momentum()
    with tf.GradientTape() as tape:
        value = loss()(data()[1], model(data()[0]))
    optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)


def ranks() -> dict[str, Any]:
    """Two processes."""
    found: dict[str, Any] = {}
    with dream.strategy("sharded") as strategy:
        rank = strategy.topology.rank
        model = fitted(wide())
        found["weights"] = weights(model)
        found["bytes"] = bytes_held(model.variables), bytes_whole(model.variables)
        found["losses"] = stepped(strategy, wide())
        found["differ"] = told(lambda: fitted(different(rank)))
        found["other data"] = told(lambda: fitted_on(wide(), rank))
        found["files"] = files(strategy, model)
        found["alone"] = alone(model, rank)
    return found


def fitted_on(model: Any, rank: int) -> None:
    model.compile(momentum(), loss())
    x, y = data()
    model.fit(x + rank, y, batch_size=16, verbose=0)


def different(rank: int) -> Any:
    return keras.Sequential([keras.Input((8,)), layers.Dense(4 + 2 * rank, name="odd")])


def names() -> list[str]:
    """Of the experimental ones, those that TensorFlow no longer has."""
    from tensorflow.experimental import dtensor as theirs

    from dream.adapters.tensorflow.parallel.sharding import dtensor as ours

    return [name for name in ours.NAMES if not hasattr(theirs, name)]


UNITS, LAYERS = 768, 40


class Lazy(keras.Model):
    """It makes its variables when it sees a batch; one of them by its own word."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(64, activation="tanh"), layers.Dense(4)
        self.scale = self.add_weight(shape=(64,), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return self.last(self.first(x) * self.scale)


def lazy() -> Any:
    keras.utils.set_random_seed(3)
    return Lazy()


def making() -> dict[str, Any]:
    """Two processes."""
    found: dict[str, Any] = {}
    with dream.strategy("sharded") as strategy:
        rank = strategy.topology.rank
        found["kinds"] = [type(v.value).__name__ for v in wide().variables]
        narrow = layers.Dense(64, dtype="bfloat16", name="narrow")
        narrow.build((None, 8))
        found["narrow"] = str(narrow.kernel.value.dtype), narrow.kernel.value.local()[0].shape[1]
        found["apart"] = apart(rank)
        found["peak"] = peak(strategy)
        found["lazy"] = weights(fitted(lazy()))
        stepped(strategy, stepping := lazy())
        found["steps"] = weights(stepping)
        late = lazy()
        found["differ"] = told(lambda: different(rank))
    found["late"] = weights(fitted(late))
    with dream.strategy("sharded"):
        found["set apart"] = told(lambda: fitted(set_apart(rank)))  # the ranks differ from then on
    found["one"] = weights(fitted(lazy()))  # plain Keras, after the blocks
    return found


def apart(rank: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(what this rank would have drawn, what its model has)."""
    keras.utils.set_random_seed(5 + rank)
    drawn = keras.initializers.GlorotUniform()((8, 64))
    keras.utils.set_random_seed(5 + rank)
    return [np.asarray(drawn)], weights(keras.Sequential([keras.Input((8,)), layers.Dense(64)]))


def peak(strategy: Any) -> dict[str, float]:
    """In bytes, how much this process grew at most while it made a model, then with the state of
    its optimizer, and how much the model is."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    dense = [layers.Dense(UNITS, use_bias=False) for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((UNITS,)), *dense])
    made = status("VmHWM") - before
    between = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    strategy._adapter.placement.place_optimizer(momentum(), model.trainable_variables)
    return {
        "made": made,
        "state": status("VmHWM") - between,
        "whole": 4.0 * sum(int(np.prod(v.shape)) for v in model.variables),
    }


def status(name: str) -> float:
    """One of the kernel's figures of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return float(line.split()[1]) * 1024


def set_apart(rank: int) -> Any:
    """Each rank would take its part of other values."""
    model = wide()
    model.set_weights([np.full(v.shape, float(rank), np.float32) for v in model.variables])
    return model


BATCH, EPOCHS = 16, 5


def adamw() -> Any:
    return keras.optimizers.AdamW(0.01)


def optimizers() -> dict[str, Any]:
    """Two processes, 20 steps of AdamW; and plain Keras, after the blocks."""
    found: dict[str, Any] = {}
    with dream.strategy("sharded"):
        model = fitted(wide(), adamw(), EPOCHS)
        found["sharded"] = weights(model)
        states = [v for v in model.optimizer.variables if v.shape.rank]
        found["states"] = bytes_held(states), bytes_whole(states)
    with dream.strategy("model_parallel", split="tensor", clip_norm=0.05):
        found["scaled"] = weights(fitted(wide(), scaled()))
    with dream.strategy("model_parallel", split="tensor"):
        found["tensor"] = weights(fitted(wide(), adamw(), EPOCHS))
    found["one scaled"] = weights(fitted(wide(), momentum(global_clipnorm=0.05)))
    return found | one_device()


def stages() -> dict[str, Any]:
    """Two processes that are stages."""
    with dream.strategy("model_parallel", split="pipeline"):
        found = {"pipeline": weights(fitted(wide(), adamw(), EPOCHS))}
    return found | one_device()


def one_device() -> dict[str, Any]:
    """One device, and the same with its sums in other orders."""
    return {
        "one": weights(fitted(wide(), adamw(), EPOCHS)),
        "in parts": [in_parts(wide(), parts) for parts in (2, 4)],
    }


def in_parts(model: Any, parts: int) -> list[np.ndarray]:
    """One device's own training with each batch summed in as many parts."""
    optimizer, judge, (x, y) = adamw(), loss(), data()
    for begin in [*range(0, len(x), BATCH)] * EPOCHS:
        total: list[Any] = []
        a, b = x[begin : begin + BATCH], y[begin : begin + BATCH]
        for part in range(parts):
            with tf.GradientTape() as tape:
                value = judge(b[part::parts], model(a[part::parts], training=True))
            share = len(b[part::parts]) / len(b)
            found = tape.gradient(value, [v.value for v in model.trainable_variables])
            found = [g * share for g in found]
            total = [s + g for s, g in zip(total, found, strict=True)] if total else found
        optimizer.apply(total, model.trainable_variables)
    return weights(model)
