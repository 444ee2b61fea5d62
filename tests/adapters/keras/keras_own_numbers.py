"""What models end with beside plain Keras's: by steps, draws and optimizers of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras_own_steps import OWN, SAMPLES, WIDTH, TracksTests, own, plain, said_lines

import dream


class NoisyWeights(layers.Layer):  # type: ignore[misc]
    """Multiplies by weights that it draws noise for: as many rows as it has inputs."""

    def build(self, shape: Any) -> None:
        self.draws = keras.random.SeedGenerator(5)
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

    def call(self, x: Any) -> Any:
        noise = keras.random.normal((2 * WIDTH, 3), seed=self.draws)
        return ops.matmul(x, self.kernel + noise[:WIDTH])


def apart_by_noise_of_a_written_size() -> float:
    """How far from plain Keras's a model ends whose layer draws as many rows as two for each of a
    share's samples."""

    def weights() -> list[Any]:
        keras.utils.set_random_seed(3)
        made = plain(NoisyWeights())
        x = np.random.default_rng(0).random((2 * SAMPLES + 2, WIDTH)).astype("float32")
        made.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        made.fit(x, x[:, :1], batch_size=2 * WIDTH, verbose=0)
        found: list[Any] = made.get_weights()
        return found

    alone = weights()
    with dream.strategy("mirrored"):
        shared = weights()
    return max(float(np.abs(a - b).max()) for a, b in zip(alone, shared, strict=True))


def answers_by_other_rows() -> tuple[list[int], str]:
    """The shape of what a model predicts, each row by all rows of its batch, and what is said."""
    with dream.strategy("mirrored"), said_lines() as lines:
        alike = layers.Lambda(lambda x: ops.matmul(x, ops.transpose(x)))
        made = keras.Sequential([keras.Input((WIDTH,)), alike])
        x = np.random.default_rng(0).random((8, WIDTH)).astype("float32")
        found = made.predict(x, batch_size=8, verbose=0)
    return list(found.shape), "\n".join(lines)


def apart_by_a_summed_loss() -> float:
    """How far from plain Keras's a model ends whose own step has the sum of its samples' losses,
    over a BatchNorm and dropout, of batches that come out uneven."""

    def weights() -> list[Any]:
        keras.utils.set_random_seed(3)
        made = own(OWN["sum"])
        made.optimizer.learning_rate = 0.003
        x = np.random.default_rng(0).random((25, WIDTH)).astype("float32")
        made.fit(x, x[:, :1], batch_size=9, epochs=2, verbose=0)
        found: list[Any] = made.get_weights()
        return found

    alone = weights()
    with dream.strategy("mirrored"):
        shared = weights()
    return max(float(np.abs(a - b).max()) for a, b in zip(alone, shared, strict=True))


def apart_by_tracked_sums() -> float:
    """How far from plain Keras's the logs are of a model that updates a metric by the sum of its
    samples' losses, in training and in tests, in times of their size."""

    def logged() -> list[float]:
        keras.utils.set_random_seed(3)
        seen = keras.Input((WIDTH,))
        made = TracksTests(seen, layers.Dense(1)(seen))
        made.own_loss = OWN["sum"]
        made.compile(keras.optimizers.SGD(0.003))
        x = np.random.default_rng(0).random((25, WIDTH)).astype("float32")
        tests = x[:21], x[:21, :1]
        logs = made.fit(x, x[:, :1], batch_size=9, epochs=2, validation_data=tests, verbose=0)
        found: list[float] = [*logs.history["tracked"], *logs.history["val_tracked"]]
        return found

    alone = logged()
    with dream.strategy("mirrored"):
        shared = logged()
    return max(abs(a - b) / abs(a) for a, b in zip(alone, shared, strict=True))


class Shaken(keras.optimizers.SGD):  # type: ignore[misc]
    """Adds noise to each gradient: rows of some look like a share's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise = keras.random.SeedGenerator(6)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        drawn = keras.random.normal(tuple(variable.shape), seed=self.noise)
        super().update_step(gradient + 0.1 * drawn, variable, learning_rate)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01, weight_decay=0.1),
    "shaken": lambda: Shaken(0.05),
}


def apart_by_optimizers() -> dict[str, float]:
    """How far from plain Keras's models end by optimizers that update by rules of their own, and
    what they predict of a batch."""

    def trained(optimizer: Any) -> list[Any]:
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8), layers.Dense(1)])
        x = np.random.default_rng(0).random((32, WIDTH)).astype("float32")
        made.compile(optimizer, "mse")
        made.fit(x, x[:, :1], batch_size=16, epochs=3, verbose=0)
        return [*made.get_weights(), made.predict_on_batch(x[:3])]

    alone = {name: trained(make()) for name, make in OPTIMIZERS.items()}
    with dream.strategy("mirrored"):
        shared = {name: trained(make()) for name, make in OPTIMIZERS.items()}
    return {
        name: max(
            float(np.abs(a - b).max()) for a, b in zip(alone[name], shared[name], strict=True)
        )
        for name in OPTIMIZERS
    }


def apart_in_float64() -> float:
    """How far from plain Keras's models end that compute in float64, by a mean, a sum, a mask
    and a step of their own: by far less than a float32 can tell."""

    def trained() -> list[Any]:
        found: list[Any] = []
        x = np.random.default_rng(0).random((25, WIDTH))
        for make in (
            plain,
            lambda: plain(loss=keras.losses.MeanSquaredError("sum")),
            lambda: own(OWN["mean"]),
        ):
            keras.utils.set_random_seed(3)
            made = make()
            made.optimizer.learning_rate = 0.01
            found += _fitted(made, x, x[:, :1])
        keras.utils.set_random_seed(3)
        seen = keras.Input((WIDTH, 1))
        masked = keras.Model(seen, layers.Dense(1)(layers.Masking(0.0)(seen)))
        masked.compile(keras.optimizers.SGD(0.1), "mse")
        rows = np.where(np.arange(25)[:, None] % 3 < np.arange(WIDTH), 0.0, x)[..., None]
        return [*found, *_fitted(masked, rows, x[..., None])]

    keras.config.set_floatx("float64")
    try:
        alone = trained()
        with dream.strategy("mirrored"):
            shared = trained()
    finally:
        keras.config.set_floatx("float32")
    return max(float(np.abs(a - b).max()) for a, b in zip(alone, shared, strict=True))


def _fitted(model: Any, x: Any, y: Any) -> list[Any]:
    model.fit(x, y, batch_size=9, epochs=2, verbose=0)
    found: list[Any] = model.get_weights()
    return found
