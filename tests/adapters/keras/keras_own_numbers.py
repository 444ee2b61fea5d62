"""What models end with beside plain Keras's: by steps, draws and optimizers of one's own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras_own_steps import OWN, SAMPLES, WIDTH, TracksTests, own, plain

import dream

Numbers = Callable[[], list[Any]]
NUMBERS: dict[str, Numbers] = {}


def numbers(function: Numbers) -> Numbers:
    """Note one: what training ends with."""
    NUMBERS[function.__name__] = function
    return function


def ended(names: Sequence[str]) -> dict[str, Any]:
    """Return what each comes to on this rank, without dream, which rank 0 alone runs, and in the
    block; or what it raised."""
    first = os.environ.get("RANK", "0") == "0"
    found: dict[str, Any] = {}
    for name in names:
        alone = _or_fault(NUMBERS[name]) if first else None
        with dream.strategy("mirrored"):
            found[name] = alone, _or_fault(NUMBERS[name])
    return found


def _or_fault(act: Numbers) -> list[Any] | str:
    """A fault of one rank alone must not leave others waiting in the block."""
    try:
        return act()
    except Exception:
        return traceback.format_exc()


class NoisyWeights(layers.Layer):  # type: ignore[misc]
    """Multiplies by weights that it draws noise for: as many rows as it has inputs."""

    def build(self, shape: Any) -> None:
        self.draws = keras.random.SeedGenerator(5)
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

    def call(self, x: Any) -> Any:
        noise = keras.random.normal((2 * WIDTH, 3), seed=self.draws)
        return ops.matmul(x, self.kernel + noise[:WIDTH])


@numbers
def noise_of_a_written_size() -> list[Any]:
    """A layer draws as many rows as two for each of a share's samples."""
    keras.utils.set_random_seed(3)
    made = plain(NoisyWeights())
    x = np.random.default_rng(0).random((2 * SAMPLES + 2, WIDTH)).astype("float32")
    made.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    made.fit(x, x[:, :1], batch_size=2 * WIDTH, verbose=0)
    return list(made.get_weights())


@numbers
def augmented_by_keras() -> list[Any]:
    """By layers that draw for each sample, and two or three numbers for all: as many as a share has
    samples; and by one that picks others by Python's generator in each step, or as it is traced. No
    levels: they would hang on rounding."""
    found: list[Any] = []
    given = {"value_range": (0, 1), "seed": 3}
    for blurs in (True, False):
        if blurs:
            augments = layers.RandomGaussianBlur(0.9, **given)
        else:
            augments = layers.AugMix(all_ops=False, chain_depth=2, **given)
            augments._augment_layers = ["random_rotation", "random_shear", "random_translation"]
        keras.utils.set_random_seed(3)
        maps = layers.Conv2D(2, 3, activation="relu")
        made = keras.Sequential(
            [keras.Input((6, 6, 3)), augments, maps, layers.Flatten(), layers.Dense(1)]
        )
        x = np.random.default_rng(0).random((19, 6, 6, 3)).astype("float32")
        made.compile(keras.optimizers.SGD(0.05), "mse")
        for size in (4, 6):
            made.fit(x, x[:, 0, 0, :1], batch_size=size, verbose=0)
        found += made.get_weights()
    return found


@numbers
def answers_for_which_it_draws() -> list[Any]:
    """What a model says of batches, where it draws random numbers for their rows."""
    keras.utils.set_random_seed(3)
    draws = keras.random.SeedGenerator(7)
    made = plain(layers.Lambda(lambda x: x * keras.random.uniform(ops.shape(x), seed=draws)))
    x = np.random.default_rng(0).random((7, WIDTH)).astype("float32")
    return [made.predict_on_batch(x), made.predict(x, verbose=0), made.predict_on_batch(x)]


@numbers
def a_summed_loss() -> list[Any]:
    """Of a step of one's own, over a BatchNorm and dropout, of batches that come out uneven."""
    keras.utils.set_random_seed(3)
    made = own(OWN["sum"])
    made.optimizer.learning_rate = 0.003
    x = np.random.default_rng(0).random((25, WIDTH)).astype("float32")
    return _fitted(made, x, x[:, :1])


@numbers
def tracked_sums() -> list[Any]:
    """The logs of a model that updates a metric by the sum of its samples' losses, in training and
    in tests."""
    keras.utils.set_random_seed(3)
    seen = keras.Input((WIDTH,))
    made = TracksTests(seen, layers.Dense(1)(seen))
    made.own_loss = OWN["sum"]
    made.compile(keras.optimizers.SGD(0.003))
    x = np.random.default_rng(0).random((25, WIDTH)).astype("float32")
    tests = x[:21], x[:21, :1]
    logs = made.fit(x, x[:, :1], batch_size=9, epochs=2, validation_data=tests, verbose=0)
    return [logs.history["tracked"], logs.history["val_tracked"]]


class Weighs(keras.Model):  # type: ignore[misc]
    """Updates metrics by one number for a batch in its loss: each weighs something else."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)
        names = "rows", "floats", "two", "one", "tensor", "masked", "sums", "in_call"
        self.means = {name: keras.metrics.Mean(name=name) for name in names}
        self.total = keras.metrics.Sum(name="total")

    def call(self, x: Any) -> Any:
        self.means["in_call"].update_state(ops.sum(x))
        return self.dense(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        errors = ops.square(y - y_pred)
        loss = ops.mean(errors)
        mask = ops.cast(y > 0.5, "float32")
        rows = ops.shape(x)[0]
        masked = ops.sum(errors * mask) / ops.maximum(ops.sum(mask), 1e-9)
        for name, number, weight in (
            ("rows", loss, rows),
            ("floats", loss, float(rows) if isinstance(rows, int) else ops.cast(rows, "float32")),
            ("two", loss, 2),
            ("one", loss, 1),
            ("tensor", loss, ops.convert_to_tensor(2.0)),
            ("masked", masked, ops.sum(mask)),
            ("sums", ops.sum(errors), rows),
        ):
            self.means[name].update_state(number, sample_weight=weight)
        self.total.update_state(loss, sample_weight=rows)
        return loss


@numbers
def numbers_that_weigh() -> list[Any]:
    """The logs, of batches and tests whose shares are uneven, some of them of one row."""
    keras.utils.set_random_seed(3)
    made = Weighs()
    made.compile(keras.optimizers.SGD(0.1))
    x = np.random.default_rng(0).random((29, WIDTH)).astype("float32")
    tests = x[:13], x[:13, :1]
    logs = made.fit(
        x,
        x[:, :1],
        batch_size=8,
        epochs=2,
        validation_data=tests,
        validation_batch_size=5,
        verbose=0,
    )
    return [logs.history[name] for name in sorted(logs.history)]


class Shaken(keras.optimizers.SGD):  # type: ignore[misc]
    """Adds noise to each gradient: rows of some look like a share's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise = keras.random.SeedGenerator(6)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        drawn = keras.random.normal(tuple(variable.shape), seed=self.noise)
        super().update_step(gradient + 0.1 * drawn, variable, learning_rate)


@numbers
def optimizers_with_rules_of_their_own() -> list[Any]:
    """And what their models predict of a batch."""
    found: list[Any] = []
    x = np.random.default_rng(0).random((32, WIDTH)).astype("float32")
    muon = keras.optimizers.Muon(0.01, weight_decay=0.1)
    for optimizer in (keras.optimizers.Nadam(0.01), muon, Shaken(0.05)):
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8), layers.Dense(1)])
        made.compile(optimizer, "mse")
        made.fit(x, x[:, :1], batch_size=16, epochs=3, verbose=0)
        found += [*made.get_weights(), made.predict_on_batch(x[:3])]
    return found


@numbers
def float64() -> list[Any]:
    """By a mean, a sum, a mask and a step of one's own."""
    _compute_in("float64")
    try:
        return _in_float64()
    finally:
        _compute_in("float32")


def _compute_in(dtype: str) -> None:
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)  # which is set by floatx once, by the first layer


def _in_float64() -> list[Any]:
    found: list[Any] = []
    x = np.random.default_rng(0).random((25, WIDTH))
    summed = keras.losses.MeanSquaredError("sum")
    for make in (plain, lambda: plain(loss=summed), lambda: own(OWN["mean"])):
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


def _fitted(model: Any, x: Any, y: Any) -> list[Any]:
    model.fit(x, y, batch_size=9, epochs=2, verbose=0)
    found: list[Any] = model.get_weights()
    return found


def answers_by_other_rows() -> list[int]:
    """Return the shape of what a model predicts, each row by all rows of its batch."""
    with dream.strategy("mirrored"):
        alike = layers.Lambda(lambda x: ops.matmul(x, ops.transpose(x)))
        made = keras.Sequential([keras.Input((WIDTH,)), alike])
        x = np.random.default_rng(0).random((8, WIDTH)).astype("float32")
        found = made.predict(x, batch_size=8, verbose=0)
    return list(found.shape)
