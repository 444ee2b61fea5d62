"""Steps of one's own: what is said of them before they train."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import layers, ops

import dream
from dream._log import warn_once

Loss = Callable[[Any, Any, Any], Any]
SAMPLES, WIDTH = 15, 4
MIXES = 11
"""A seed by which orders are drawn: of 35 one is an order within each part of a trial's."""


class OwnStep(keras.Model):  # type: ignore[misc]  # Keras is untyped
    """Steps by a loss that it is given: of the model, x and y."""

    own_loss: Loss

    def train_step(self, batch: Any) -> Any:
        x, y = batch
        weights = self.trainable_variables
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.own_loss(self, x, y)
            gradients = tape.gradient(loss, weights)
        else:
            import torch

            loss = self.own_loss(self, x, y)
            gradients = list(torch.autograd.grad(loss, [v.value for v in weights]))
        if keras.backend.backend() == "torch":
            with torch.no_grad():
                self.optimizer.apply(gradients, weights)
        else:
            self.optimizer.apply(gradients, weights)
        return {"own": ops.stop_gradient(loss)}


class Largest(layers.Layer):  # type: ignore[misc]
    """Keeps the largest value of its inputs, or, if asked, their running mean."""

    def __init__(self, average: bool) -> None:
        super().__init__()
        self.average = average

    def build(self, shape: Any) -> None:
        self.kept = self.add_weight(shape=(), initializer="ones", trainable=False, name="kept")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            mean = 0.9 * self.kept + 0.1 * ops.mean(x)
            self.kept.assign(mean if self.average else ops.maximum(self.kept, ops.max(x)))
        return x


class Worst(keras.metrics.Metric):  # type: ignore[misc]
    """The largest error, or the errors' mean."""

    def __init__(self, average: bool) -> None:
        super().__init__(name="worst")
        self.average = average
        self.error = self.add_weight(shape=(), initializer="zeros", name="error")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = ops.abs(ops.cast(y, y_pred.dtype) - y_pred)
        self.count.assign_add(ops.cast(ops.shape(errors)[0], "float32"))
        worst = ops.maximum(self.error, ops.max(errors))
        self.error.assign(self.error + ops.sum(errors) if self.average else worst)

    def result(self) -> Any:
        return self.error / (self.count if self.average else 1.0)


def root_error(y: Any, y_pred: Any) -> Any:
    return ops.sqrt(mean_error(y, y_pred))


def mean_error(y: Any, y_pred: Any) -> Any:
    return ops.mean(ops.square(y - y_pred))


class Capped(layers.Layer):  # type: ignore[misc]
    """Divides a batch that comes to be large by its largest value."""

    def call(self, x: Any) -> Any:
        return x / ops.maximum(1.0, ops.max(ops.abs(x)) / 50.0)


class Draws(layers.Layer):  # type: ignore[misc]
    """Draws for its inputs: others of the batch, in which it mixes them, or noise, which it adds a
    loss of."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.mixes = mixes
        self.seed = keras.random.SeedGenerator(8)

    def call(self, x: Any, training: bool = False) -> Any:
        if self.mixes:
            return _mixed(x, self.seed) if training else x
        noisy = x * keras.random.uniform(ops.shape(x), seed=self.seed)
        self.add_loss(0.1 * ops.mean(noisy**2))
        return noisy


def _mixed(x: Any, seed: Any = MIXES) -> Any:
    """Half of each sample, and half of another one, by an order that is drawn."""
    order = ops.argsort(keras.random.uniform((ops.shape(x)[0],), seed=seed))
    return 0.5 * x + 0.5 * ops.take(x, order, axis=0)


def _count(x: Any) -> Any:
    """The rows of a tensor, as scripts of TensorFlow's have them: a tensor, in a trial too."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.shape(x)[0]
    return ops.shape(x)[0]


class DrawsInLoss(keras.Model):  # type: ignore[misc]
    """Has a loss of noisy inputs beside its own: of their outputs, or of those of mixed inputs."""

    mixes = False

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        seen = _mixed(x) if self.mixes else x + keras.random.normal((_count(x), WIDTH))
        return ops.mean(ops.square(y - y_pred)) + ops.mean(self(seen, training=training) ** 2)


class Attends(layers.Layer):  # type: ignore[misc]
    """Attention within each sample. By the biases of its keys there is no gradient but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = layers.MultiHeadAttention(2, 3)

    def call(self, x: Any) -> Any:
        seen = ops.expand_dims(x, -1)
        return ops.squeeze(self.attend(seen, seen), -1)


def _identity(backward: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that gives what it is given, and changes the gradient."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.custom_gradient(lambda x: (tf.identity(x), backward))  # type: ignore[no-any-return]
    import torch

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Any) -> Any:  # type: ignore[override]
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:  # type: ignore[override]
            return backward(gradient)

    return Changed.apply


def _clipped(gradient: Any) -> Any:
    """By the norm of all rows' gradients together."""
    return gradient / ops.maximum(1.0, ops.norm(gradient))


class OwnCall(OwnStep):
    """Calls its layers by itself."""

    def call(self, x: Any, training: Any = None) -> Any:
        return super().call(x, training=training)


class ByMean(OwnStep):
    """Sets its learning rate by its loss."""

    def train_step(self, batch: Any) -> Any:
        logs = super().train_step(batch)
        self.optimizer.learning_rate.assign(0.1 / (1.0 + logs["own"]))
        return logs


class Sometimes(keras.Model):  # type: ignore[misc]
    """Applies gradients where a condition of TensorFlow's holds."""

    own_loss: Loss

    def train_step(self, batch: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.own_loss(self, *batch)
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        tf.cond(loss > 0.0, lambda: self.optimizer.apply(gradients, weights), lambda: None)
        return {}


class Tracks(OwnStep):
    """Tells its loss by a metric."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tracker = keras.metrics.Mean(name="tracked")

    def train_step(self, batch: Any) -> Any:
        self.tracker.update_state(super().train_step(batch)["own"])
        return {"tracked": self.tracker.result()}


class TracksTests(Tracks):
    """Tells of what it is tested on by a number that it is given: of the errors."""

    tested_by: Callable[[Any], Any] = staticmethod(ops.sum)

    def test_step(self, batch: Any) -> Any:
        x, y = batch
        self.tracker.update_state(self.tested_by(ops.square(y - self(x, training=False))))
        return {"tracked": self.tracker.result()}


class Remembers(keras.losses.Loss):  # type: ignore[misc]
    """Divides by the running size of its errors, or, if asked, by a count of its calls."""

    def __init__(self, counts: bool) -> None:
        super().__init__(name="remembers")
        self.counts = counts
        self.seen = keras.Variable(1.0, trainable=False, name="seen")

    def call(self, y: Any, y_pred: Any) -> Any:
        error = ops.square(y - y_pred)
        self.seen.assign(self.seen + (1.0 if self.counts else ops.mean(error)))
        return ops.mean(error, axis=-1) / self.seen


class Tells(keras.Model):  # type: ignore[misc]
    """Adds figures to its metrics': those that it is given."""

    figures: Callable[[Any, Any], dict[str, Any]]

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        found = super().compute_metrics(x, y, y_pred, sample_weight)
        return found | self.figures(found, ops.square(y - y_pred))


FIGURES: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "a mean": lambda _, error: {"near": ops.mean(ops.cast(error < 0.1, "float32"))},
    "a root": lambda _, error: {"root": ops.sqrt(ops.mean(error))},
    "of metrics": lambda found, _: {"twice": 2.0 * found["loss"]},
}


class OfPositives(keras.Model):  # type: ignore[misc]
    """A mean over the samples whose target is positive."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None,
        training: bool = True,
    ) -> Any:  # fmt: skip
        chosen = ops.cast(y > 0, "float32")
        return ops.sum(chosen * ops.square(y - y_pred)) / (ops.sum(chosen) + 1e-6)


def _squares(model: Any, x: Any, y: Any) -> Any:
    return ops.square(y - model(x, training=True))


def _noise(x: Any) -> Any:
    """Rows of a draw for the batch, and rows for two batches."""
    noise = keras.random.normal(ops.shape(x)) + keras.random.uniform(ops.shape(x))
    return noise[:, :1]


def _beside_noise(model: Any, x: Any, y: Any) -> Any:
    """A mean over the batch, and one over rows whose number is written down."""
    noise = keras.random.normal((12, WIDTH))
    return ops.mean(_squares(model, x, y)) + ops.mean(model(noise, training=True) ** 2)


def _joined(model: Any, x: Any, y: Any) -> Any:
    """The same two means, of one call."""
    found = model(ops.concatenate([keras.random.normal((12, WIDTH)), x]), training=True)
    return ops.mean(found[:12] ** 2) + ops.mean((found[12:] - y) ** 2)


def _left_out(model: Any, x: Any, y: Any) -> Any:
    loss = ops.mean(_squares(model, x, y))
    return ops.where(loss > 1e4, 0.0, loss)


def _by_metric(model: Any, x: Any, y: Any) -> Any:
    return ops.mean(_squares(model, x, y)) * (1.0 + model.metrics[0].result())


OWN: dict[str, Loss] = {
    "mean": lambda *given: ops.mean(_squares(*given)),
    "noisy mean": lambda model, x, y: ops.mean(_squares(model, x, y + _noise(x))),
    "compiled": lambda model, x, y: model.compute_loss(x, y, model(x, training=True)),
    "penalised": lambda model, x, y: ops.mean(_squares(model, x, y)) + sum(model.losses),
    "beside noise": _beside_noise,
    "joined": _joined,
    "left out": _left_out,
    "mixed": lambda model, x, y: ops.mean(_squares(model, _mixed(x), y)),
    "by a metric": _by_metric,
    "sum": lambda *given: ops.sum(_squares(*given)),
    "overflowing": lambda *given: ops.mean(_squares(*given)) + ops.mean(ops.exp(given[1])),
    "masked": lambda model, x, y: ops.sum(_squares(model, x, y) * x[:, :1]) / ops.sum(x[:, :1]),
    "coupled": lambda model, x, y: ops.max(_squares(model, x, y)),
}


def said(devices: int, names: Sequence[str]) -> dict[str, str]:
    """What dream says of each of these before it has trained on one batch, on this rank, on each
    of whose devices a step is traced."""
    with dream.strategy("mirrored"):
        acts = _acts(devices)
        return {name: acts[name]() for name in names}


def _acts(devices: int) -> dict[str, Callable[[], str]]:
    """What makes each model, and gives what is said of it."""
    acts: dict[str, Callable[[], str]] = {
        name: lambda loss=loss: _said_of(own(loss))  # type: ignore[misc]
        for name, loss in OWN.items()
    }
    for average in (True, False):
        acts[f"state {average}"] = lambda a=average: _said_of(plain(Largest(a)))
        acts[f"metric {average}"] = lambda a=average: _said_of(plain(metrics=[Worst(a)]))
    for function in (root_error, mean_error):
        acts[function.__name__] = lambda f=function: _said_of(plain(metrics=[f]))
    acts["counter"] = lambda: str(_counted() / devices)
    acts["attends"] = lambda: _said_of(plain(Attends()))
    acts["attends to numbers"] = lambda: _said_of(_attending(OwnStep))
    acts["attends in bfloat16"] = lambda: _said_in_bfloat16(lambda: _attending(OwnStep))
    acts["attends in a call of its own"] = lambda: _said_of(_attending(OwnCall))
    acts["clipped in bfloat16"] = lambda: _said_in_bfloat16(lambda: _changing_gradients(_clipped))
    acts["spectral"] = lambda: _said_of(_normalising())
    for mixes in (True, False):
        kind = "mixed" if mixes else "drawn"
        acts[f"{kind} in a call"] = lambda m=mixes: _said_of(plain(Draws(mixes=m)))
        acts[f"{kind} in a loss"] = lambda m=mixes: _said_of(_drawing_in_loss(m))
    acts["along the samples"] = lambda: _said_of(plain(layers.UnitNormalization(axis=-2)))
    acts["capped"] = lambda: _said_of(plain(Capped()))
    for name, backward in {"clipped": _clipped, "turned": lambda g: -0.5 * g}.items():
        acts[name] = lambda b=backward: _said_of(_changing_gradients(b))
    for counts in (True, False):
        acts[f"remembers {counts}"] = lambda c=counts: _said_of(plain(loss=Remembers(c)))
    for name, figures in FIGURES.items():
        acts[name] = lambda f=figures: _said_of(_telling(f))
        acts[f"{name}, tested"] = lambda f=figures: _said_of(_telling(f), tests=True)
    for name in ("sum", "mean", "overflowing"):
        acts[f"{name}, tracked"] = lambda n=name: _said_of(own(OWN[n], Tracks))
    for name, number in {"sum": ops.sum, "mean": ops.mean, "largest": ops.max}.items():
        acts[f"{name}, tracked in tests"] = lambda n=number: _said_of_tests(n)
    acts["conditional"] = lambda: _refused(own(OWN["mean"], Sometimes))
    acts["rate"] = lambda: _refused(own(OWN["mean"], ByMean))
    acts["of positives"] = _said_of_positives
    return acts


def _changing_gradients(backward: Callable[[Any], Any]) -> Any:
    """By small weights after it, so that an ordinary batch's gradients there are small too."""
    made = plain(layers.Dense(5), layers.Lambda(_identity(backward)))
    made.layers[-1].kernel.assign(np.full((5, 1), 0.1, "float32"))
    return made


def _said_of_tests(number: Callable[[Any], Any]) -> str:
    made = own(OWN["mean"], TracksTests)
    made.tested_by = number
    return _said_of(made, tests=True)


def _said_in_bfloat16(make: Callable[[], Any]) -> str:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return _said_of(make())
    finally:
        keras.config.set_dtype_policy(before)


def _attending(kind: type[OwnStep]) -> Any:
    """To inputs as they are, by scores that grow with their square."""
    keras.utils.set_random_seed(108)
    seen = keras.Input((WIDTH,))
    rows = layers.Dense(8)(layers.Reshape((WIDTH, 1))(seen))
    mixed = layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 4)(rows, rows))
    made = kind(seen, layers.Dense(1, dtype="float32")(mixed))
    made.own_loss = OWN["mean"]
    made.compile(keras.optimizers.SGD(0.1))
    return made


def _normalising() -> Any:
    """By a layer that sets its own kernel in training."""
    seen = keras.Input((WIDTH,))
    normed = layers.SpectralNormalization(layers.Dense(5))(seen)
    made = OwnStep(seen, layers.Dense(1)(normed))
    made.own_loss = OWN["mean"]
    made.compile(keras.optimizers.SGD(0.1))
    return made


def _drawing_in_loss(mixes: bool) -> Any:
    seen = keras.Input((WIDTH,))
    made = DrawsInLoss(seen, layers.Dense(1)(seen))
    made.mixes = mixes
    made.compile(keras.optimizers.SGD(0.1), "mse")  # which its own loss leaves aside
    return made


def _said_of_positives() -> str:
    seen = keras.Input((WIDTH,))
    positives = OfPositives(seen, layers.Dense(1)(seen))
    positives.compile(keras.optimizers.SGD(0.1))
    return _said_of(positives)


def _refused(model: Any) -> str:
    try:
        return _said_of(model)
    except dream.DreamError as error:
        return f"{type(error).__name__}: {error}"


def own(loss: Loss, kind: type[OwnStep] = OwnStep) -> Any:
    seen = keras.Input((WIDTH,))
    first = layers.Dense(5, "tanh", kernel_regularizer="l2")(seen)
    hidden = layers.Dropout(0.3)(layers.BatchNormalization()(first))
    made = kind(seen, layers.Dense(1)(hidden))
    made.own_loss = loss
    made.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError(reduction="sum"))
    return made


def _telling(figures: Callable[[Any, Any], dict[str, Any]]) -> Any:
    seen = keras.Input((WIDTH,))
    made = Tells(seen, layers.Dense(1)(seen))
    made.figures = figures
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def plain(*inner: Any, metrics: Any = None, loss: Any = "mse") -> Any:
    made = keras.Sequential([keras.Input((WIDTH,)), *inner, layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics)
    return made


@contextmanager
def said_lines() -> Iterator[list[str]]:
    """Inside, what dream says is in the list."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    warn_once._said.clear()
    try:
        yield lines
    finally:
        logging.getLogger("dream").removeHandler(handler)


def _said_of(model: Any, *, tests: bool = False) -> str:
    draw = np.random.default_rng(0)
    x = draw.random((SAMPLES, WIDTH)).astype("float32")
    with said_lines() as lines:
        if tests:
            model.evaluate(x, x[:, :1], batch_size=SAMPLES, verbose=0)
        else:
            model.fit(x, x[:, :1], batch_size=SAMPLES, verbose=0)
    return "\n".join(line for line in lines if "eceived" in line)


def _counted() -> int:
    """A number that train_step counts with, after one step."""
    calls = 0

    def counting(model: Any, x: Any, y: Any) -> Any:
        nonlocal calls
        calls += 1
        model.steps_taken += 1
        return ops.mean(_squares(model, x, y))

    made = own(counting)
    made.steps_taken = 0
    _said_of(made)
    assert calls == made.steps_taken  # so does one of a closure's
    return int(made.steps_taken)
