"""What processes do in the tests of split Keras models. Imported by them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import dream

WIDE = 64


def told(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except dream.DreamError as error:
        return f"{type(error).__name__}: {error}"


def data(samples: int = 61) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(samples, 8)).astype(np.float32)
    return x, np.abs(x[:, :4]).argmax(axis=1)


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def momentum(**more: Any) -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, **more)


def scaled() -> Any:
    """The loss scaled up, and the gradients down again before they are clipped."""
    return keras.optimizers.LossScaleOptimizer(momentum(), initial_scale=2.0**15)


def overflowing() -> list[np.ndarray]:
    """Scaled so far that gradients are infinite at first, those of some layers for longer; and what
    has become of the scale."""
    optimizer = keras.optimizers.SGD(1e-6)
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**122)
    keras.utils.set_random_seed(3)
    large, dense = layers.Rescaling(1024.0), layers.Dense
    model = keras.Sequential(
        [keras.Input((8,)), large, dense(16, name="fc1"), dense(4, name="fc2")]
    )
    model.compile(optimizer, loss())
    model.fit(*data(), batch_size=16, epochs=3, shuffle=False, verbose=0)
    return [*weights(model), np.array(float(optimizer.dynamic_scale) / 2.0**122)]


def accumulating() -> Any:
    """By Keras itself, which then clips."""
    return momentum(gradient_accumulation_steps=2)


def wide(*more: Any) -> Any:
    keras.utils.set_random_seed(3)
    dense = layers.Dense
    return keras.Sequential(
        [keras.Input((8,)), dense(WIDE, activation="tanh", name="fc1"), *more,
         dense(WIDE, name="fc2"), dense(4, name="head")]
    )  # fmt: skip


def attending() -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    rows = layers.Dense(8)(layers.Reshape((4, 2))(inputs))
    rows = rows + layers.MultiHeadAttention(4, 4, name="mha")(rows, rows)
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(rows)))


def fitted(model: Any, optimizer: Any = None, epochs: int = 2) -> Any:
    model.compile(optimizer or momentum(), loss())
    model.fit(*data(), batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return model


def stepped(strategy: Any, model: Any, optimizer: Any = None) -> list[float]:
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(16)
    optimizer = optimizer or momentum()
    model, optimizer, batches = strategy.prepare(model, optimizer, batches)
    step = strategy.train_step(model, loss(), optimizer)
    return [float(step(*batch)) for _ in range(2) for batch in batches]


def weights(model: Any) -> list[np.ndarray]:
    return [np.array(w) for w in model.get_weights()]


def bytes_held(variables: Any) -> list[int]:
    """On each of this process's devices."""
    parts = [v.value.local() for v in variables if v.shape.rank]
    return [sum(int(tf.size(p[d])) * p[d].dtype.size for p in parts) for d in range(len(parts[0]))]


def bytes_whole(variables: Any) -> int:
    return sum(int(np.prod(v.shape)) * 4 for v in variables if v.shape.rank)


def gradients_held(strategy: Any, model: Any) -> tuple[list[int], int]:
    """(the bytes of the gradients as the optimizer is given them, on each device; of all)."""
    from dream.adapters.tensorflow.parallel.sharding import dtensor, optimizer

    placement = strategy._adapter.parallelism.placement
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


def short(variable: Any) -> str:
    """Its path without the name of the model, which Sequential puts in front."""
    model, _, rest = variable.path.partition("/")
    return rest if model.startswith("sequential") else variable.path


def mesh() -> dict[str, Any]:
    """Two devices of one process under the strategies of a mesh, and one device."""
    found: dict[str, Any] = {}
    for zero in (1, 2, 3):
        with dream.strategy("sharded", devices=2, zero=zero) as strategy:
            model = fitted(wide())
            states = [v for v in model.optimizer.variables if v.shape.rank]
            found[f"zero{zero}"] = {
                "weights": weights(model),
                "parameters": (bytes_held(model.variables), bytes_whole(model.variables)),
                "states": (bytes_held(states), bytes_whole(states)),
                "gradients": gradients_held(strategy, model),
            }
    for zero in (1, 2, 3):
        with dream.strategy("sharded", devices=2, zero=zero, clip_norm=0.05):
            found[f"normalised{zero}"] = weights(fitted(wide(layers.BatchNormalization())))
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
    found["local"] = told(lambda: entered("sharded", devices=2, sync_batch_norm=False))
    found["groups"] = told(lambda: entered("sharded", devices=2, data=2))
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
        found["one normalised"] = weights(
            fitted(
                wide(layers.BatchNormalization()),
                keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05),
            )
        )
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


def entered(name: str, **options: Any) -> None:
    with dream.strategy(name, **options):
        pass


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
    import split_across  # which builds on this file

    found: dict[str, Any] = {}
    with dream.strategy("sharded") as strategy:
        rank = strategy.topology.rank
        model = fitted(wide())
        found["weights"] = weights(model)
        found["bytes"] = bytes_held(model.variables), bytes_whole(model.variables)
        found["losses"] = stepped(strategy, wide())
        found["differ"] = told(lambda: fitted(different(rank)))
        found["other data"] = told(lambda: fitted_on(wide(), rank))
        found["files"] = split_across.files(strategy, model)
        found["alone"] = split_across.alone(model, rank)
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
