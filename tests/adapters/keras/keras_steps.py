"""Steps and loops of the users' own, and what surrounds them, run by plain Keras and in the block:
each case gives figures that must be the same either way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras_cases import BATCH, TF, Block, Figures, arrays, case, compiled, fitted, net, run

__all__ = ["run"]


def differentiated(model: Any, variables: list[Any], compute: Callable[[], Any]) -> Any:
    """(value, gradients), as a script for the backend computes them."""
    if TF:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = compute()
        return value, tape.gradient(value, variables)
    model.zero_grad()
    value = compute()
    value.backward()
    return value.detach(), [v.value.grad for v in variables]


def applied(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    if TF:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return
    import torch

    with torch.no_grad():
        optimizer.apply(gradients, variables)


class Telling(keras.Model):
    """Its step returns figures that no metric keeps, not by the order of their names."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        variables = self.trainable_variables
        value, gradients = differentiated(
            self, variables, lambda: self.compute_loss(y=y, y_pred=self(x, training=True))
        )
        applied(self.optimizer, gradients, variables)
        return {"value": value, "mean": ops.mean(x), "apart": ops.mean(ops.abs(x))}


@case
def figures_by_no_order(block: Block) -> Figures:
    keras.utils.set_random_seed(3)
    with block:
        inputs = keras.Input((8,))
        return fitted(compiled(Telling(inputs, layers.Dense(4)(inputs))))


class Coder(keras.Model):
    """A VAE without its noise: its metrics are all its own, and no log is called "loss"."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
        self.decoder = keras.Sequential([keras.Input((3,)), layers.Dense(8, "sigmoid")])
        self.total_tracker = keras.metrics.Mean(name="total_loss")
        self.parts_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.built = not TF  # on torch Keras asks for a call() where this is not said

    @property
    def metrics(self) -> list[Any]:
        return [self.total_tracker, self.parts_tracker]

    def train_step(self, data: Any) -> Any:
        parts: list[Any] = []

        def compute() -> Any:
            code = self.encoder(data)
            parts.append(ops.mean(ops.sum(ops.square(data - self.decoder(code)), axis=1)))
            return parts[0] + ops.mean(ops.sum(ops.square(code), axis=1))

        variables = self.trainable_weights
        value, gradients = differentiated(self, variables, compute)
        applied(self.optimizer, gradients, variables)
        self.total_tracker.update_state(value)
        self.parts_tracker.update_state(ops.stop_gradient(parts[0]))
        return {"loss": self.total_tracker.result(), "parts": self.parts_tracker.result()}


@case
def coder_with_its_own_metrics(block: Block) -> Figures:
    keras.utils.set_random_seed(3)
    with block:
        model = Coder()
        model.compile(optimizer=keras.optimizers.Adam(0.01))
        return counted(model, arrays()[0])


def counted(model: Any, *data: Any, **options: Any) -> Figures:
    """What fit ends with, steps counted."""
    figures = fitted(model, *data, **options)
    return {**figures, "iterations": int(model.optimizer.iterations)}


class Nested(keras.Model):
    """The first example of a step of one's own: metrics' results as they are, nested."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        variables = self.trainable_variables
        value, gradients = differentiated(
            self, variables, lambda: self.compute_loss(y=y, y_pred=self(x, training=True))
        )
        applied(self.optimizer, gradients, variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(value)
            else:
                metric.update_state(y, self(x, training=False))
        return {m.name: m.result() for m in self.metrics}


@case
def results_nested_in_results(block: Block) -> Figures:
    keras.utils.set_random_seed(3)
    with block:
        inputs = keras.Input((8,))
        model = compiled(Nested(inputs, layers.Dense(4)(inputs)), metrics=["accuracy"])
        return counted(model)


class Adversaries(keras.Model):
    """Two players, an optimizer each, in one step; the noise is of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((8,)), layers.Dense(6, "tanh"), layers.Dense(1)]
        )
        self.maker = keras.Sequential([keras.Input((8,)), layers.Dense(8)])
        self.critic_metric = keras.metrics.Mean(name="d_loss")
        self.maker_metric = keras.metrics.Mean(name="g_loss")
        self.built = not TF

    def compile(self, critic_optimizer: Any, maker_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.critic_optimizer, self.maker_optimizer = critic_optimizer, maker_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self) -> list[Any]:
        return [self.critic_metric, self.maker_metric]

    def train_step(self, data: Any) -> Any:
        x, noise = data
        size = ops.shape(x)[0]
        made = self.maker(noise)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        both = ops.stop_gradient(ops.concatenate([made, x], axis=0))
        variables = self.critic.trainable_weights
        critic_loss, gradients = differentiated(
            self, variables, lambda: self.loss_fn(labels, self.critic(both))
        )
        applied(self.critic_optimizer, gradients, variables)
        variables = self.maker.trainable_weights
        maker_loss, gradients = differentiated(
            self,
            variables,
            lambda: self.loss_fn(ops.zeros((size, 1)), self.critic(self.maker(noise))),
        )
        applied(self.maker_optimizer, gradients, variables)
        self.critic_metric.update_state(critic_loss)
        self.maker_metric.update_state(maker_loss)
        return {"d_loss": self.critic_metric.result(), "g_loss": self.maker_metric.result()}


@case
def two_players_with_an_optimizer_each(block: Block) -> Figures:
    keras.utils.set_random_seed(3)
    x, _ = arrays()
    with block:
        model = Adversaries()
        model.compile(
            keras.optimizers.Adam(0.01),
            keras.optimizers.Adam(0.01),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
        return fitted(model, x, x[::-1].copy())


class Late(keras.Model):
    """A model without a call, whose parts are built by the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.front = layers.Dense(5, "tanh")
        self.back = keras.Sequential([layers.Dense(8)])
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        if not self.front.built:
            self.back(self.front(data))
        variables = self.trainable_weights
        value, gradients = differentiated(
            self, variables, lambda: ops.mean(ops.square(data - self.back(self.front(data))))
        )
        applied(self.optimizer, gradients, variables)
        self.tracker.update_state(value, sample_weight=ops.shape(data)[0])
        return {"loss": self.tracker.result()}


@case
def parts_that_the_first_step_builds(block: Block) -> Figures:
    if not TF:
        return {}  # plain Keras on torch refuses them
    keras.utils.set_random_seed(3)
    with block:
        model = Late()
        model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
        return counted(model, arrays()[0])


class Error64(keras.metrics.Metric):
    """A metric of one's own, which adds up in float64 where targets are."""

    def __init__(self) -> None:
        super().__init__(name="error")
        self.total = self.add_weight(name="total", initializer="zeros", dtype="float64")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        error = ops.abs(ops.cast(y_true, "float64") - ops.cast(y_pred, "float64"))
        self.total.assign_add(ops.sum(error))
        self.count.assign_add(ops.cast(ops.size(error), "float32"))

    def result(self) -> Any:
        return self.total / ops.cast(self.count, "float64")


@case
def targets_and_a_metric_in_float64(block: Block) -> Figures:
    x, _ = arrays()
    y = x.sum(axis=1, keepdims=True).astype(np.float64)
    keras.utils.set_random_seed(3)
    with block:
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        return counted(compiled(model, loss="mse", metrics=[Error64()]), x, y)


@case
def fit_after_a_refused_fit(block: Block) -> Figures:
    x, y = arrays()
    with block:
        model = compiled(net(), metrics=["accuracy"])
        try:
            fitted(model, x, y[:-1])
        except ValueError:
            return counted(model, x, y)
    raise AssertionError("x and y of other lengths were taken")


class Asking(keras.callbacks.Callback):
    """Evaluates and predicts at the end of each epoch."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y
        self.figures: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        found = self.model.evaluate(self.x, self.y, batch_size=BATCH, verbose=0)
        self.figures.append([*found, float(np.mean(self.model.predict(self.x, verbose=0)))])


@case
def callbacks_that_evaluate(block: Block) -> Figures:
    x, y = arrays()
    asking = Asking(x[:33], y[:33])
    with block:
        model = compiled(net(), metrics=["accuracy"])
        figures = counted(model, callbacks=[asking], validation_data=(x[:17], y[:17]))
    return {**figures, "asked": asking.figures}


@case
def callbacks_that_watch_the_logs(block: Block) -> Figures:
    x, y = arrays()
    with block:  # one file for all ranks, as a script has it
        place = Path(tempfile.gettempdir(), f"dream-best-{os.getppid()}.weights.h5")
        model = compiled(net(), optimizer=keras.optimizers.SGD(3.0, momentum=0.9))
        watched = [
            keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, min_lr=1e-4),
            keras.callbacks.ModelCheckpoint(place, save_best_only=True, save_weights_only=True),
        ]
        figures = counted(
            model, x, y, epochs=8, callbacks=watched, validation_data=(x[:17], y[:17])
        )
        model.load_weights(place)
        return {**figures, "best": model.get_weights()}


@case
def a_schedule_of_the_learning_rate(block: Block) -> Figures:
    with block:
        rate = keras.optimizers.schedules.CosineDecay(0.1, 9)
        return counted(compiled(net(), optimizer=keras.optimizers.SGD(rate, momentum=0.9)))


@case
def averages_of_the_weights(block: Block) -> Figures:
    with block:
        optimizer = keras.optimizers.SGD(
            0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
        )
        return counted(compiled(net(), optimizer=optimizer))


@case
def gradients_accumulated(block: Block) -> Figures:
    with block:
        optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=3, clipnorm=0.05)
        return counted(compiled(net(), optimizer=optimizer))


@case
def global_norms(block: Block) -> Figures:
    with block:
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.05)
        return counted(compiled(net(), optimizer=optimizer))


@case
def compiled_by_xla(block: Block) -> Figures:
    with block:
        return counted(compiled(net(), jit_compile=TF), epochs=1)


class Twice(layers.Layer):
    """Noise on two batches that are put one behind the other, as a GAN does."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(4)

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        both = ops.concatenate([x, -x], axis=0)
        both = both + keras.random.normal(ops.shape(both), seed=self.seed)
        both = keras.random.dropout(both, 0.3, seed=self.seed)
        rows = ops.shape(x)[0]
        return both[:rows] - both[rows:]


@case
def noise_on_batches_behind_each_other(block: Block) -> Figures:
    with block:
        return counted(compiled(net(Twice())))


def looped(loss: Callable[..., Any], model: Any, optimizer: Any) -> list[float]:
    """A torch loop over a Keras model, whose loader's last batch is of one sample."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    x, y = (torch.from_numpy(a) for a in arrays())
    losses = []
    for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True):
        value = loss(model(inputs, training=True), labels)
        model.zero_grad()
        value.backward()
        if isinstance(optimizer, torch.optim.Optimizer):
            optimizer.step()
        else:
            kept = list(model.trainable_weights)
            applied(optimizer, [v.value.grad for v in kept], kept)
        losses.append(value.item())
    return losses


@case
def loops_of_torchs(block: Block) -> Figures:
    """A summed loss and a weighed one, the batch's statistics and masks, Keras's optimizer and
    torch's, and a fit in between."""
    if TF:
        return {}
    import torch
    from torch.nn import functional as F

    classes = torch.tensor([1.0, 2.0, 0.5, 1.0])
    with block:
        model = compiled(net(layers.BatchNormalization(), layers.Dropout(0.3)))
        descent = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
        losses = looped(lambda z, y: F.cross_entropy(z, y, reduction="sum"), model, descent)
        figures = counted(model, epochs=1)
        losses += looped(lambda z, y: F.cross_entropy(z, y, weight=classes), model, descent)
        losses += looped(F.cross_entropy, model, keras.optimizers.Adam(0.01))
        return {**figures, "weights": model.get_weights(), "losses": losses}


@case
def batches_by_hand(block: Block) -> Figures:
    """train_on_batch with uneven batches."""
    x, y = arrays()
    with block:
        model = compiled(net(), metrics=["accuracy"])
        said = [
            model.train_on_batch(x[i : i + BATCH], y[i : i + BATCH], class_weight={1: 2.0})
            for i in range(0, len(x), BATCH)
        ]
        said.append(model.test_on_batch(x, y))
    return {
        "weights": model.get_weights(),
        "said": np.array(said),
        "iterations": int(model.optimizer.iterations),
    }


@case
def batches_of_a_loader_by_hand(block: Block) -> Figures:
    """train_on_batch and test_on_batch with what a loader of torch's deals, the last batch uneven:
    a rank may have no sample of it."""
    if TF:
        return {}
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(*map(torch.tensor, arrays()))
    with block:
        model = compiled(net(layers.BatchNormalization(), layers.Dropout(0.3)))
        batches = DataLoader(data, batch_size=BATCH, shuffle=True)
        said = [model.train_on_batch(*batch) for batch in batches]
        said += [model.test_on_batch(*batch) for batch in DataLoader(data, batch_size=BATCH)]
    return {"weights": model.get_weights(), "said": np.array(said)}


@case
def data_of_unknown_length(block: Block) -> Figures:
    """A generator, which ends, and what validates on one."""
    x, y = arrays()

    def batches() -> Any:
        for start in range(0, len(x), BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]

    with block:
        model = compiled(net(), metrics=["accuracy"])
        figures = counted(model, batches(), batch_size=None, epochs=1)
        return {**figures, "said": model.evaluate(batches(), verbose=0)}


@case
def datasets_of_unknown_length(block: Block) -> Figures:
    if not TF:
        return {}
    import tensorflow as tf

    x, y = arrays()
    with block:
        model = compiled(net(), metrics=["accuracy"])
        data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda _, label: label > 0)
        data = data.batch(BATCH)
        figures = counted(model, data, batch_size=None, validation_data=data)
        return {**figures, "said": model.evaluate(data, verbose=0)}


class Spread(keras.metrics.MeanMetricWrapper):
    """A result of its own, of what Keras adds up."""

    def __init__(self) -> None:
        super().__init__(keras.losses.mean_squared_error, "spread")

    def result(self) -> Any:
        return ops.sqrt(super().result())


class Shaken(layers.Layer):
    """Draws for its weights, thrice as many as a share of two has rows, and for two views that lie
    one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(5)

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(24, shape[-1]), initializer="ones")

    def call(self, x: Any) -> Any:
        kernel = self.kernel + keras.random.normal(ops.shape(self.kernel), seed=self.generator)
        x = x + 0.1 * ops.matmul(x, kernel[:8])
        if not TF:  # on torch a line says that the two cannot be told apart
            return x
        both = ops.concatenate([x, -x], axis=0)
        both = both + keras.random.normal(ops.shape(both), seed=self.generator)
        first, second = ops.split(both, 2, axis=0)
        return x + 0.1 * ops.tanh(first * second)


@case
def batches_all_of_one_length(block: Block) -> Figures:
    """Parts may have as much of each, and what is drawn is that of one device all the same."""
    keras.utils.set_random_seed(3)
    x, y = arrays(3 * BATCH)
    y = np.eye(4, dtype=np.float32)[y]
    weights = np.linspace(0.0, 2.0, len(y)).astype(np.float32)
    with block:
        model = compiled(
            net(Shaken(), layers.Dropout(0.4), layers.BatchNormalization()),
            loss=keras.losses.CategoricalCrossentropy(from_logits=True),
            metrics=["accuracy", keras.metrics.RootMeanSquaredError()],
            weighted_metrics=[Spread(), "mae"],
        )
        figures = fitted(model, x, y, sample_weight=weights, validation_data=(x[::-1], y))
        sizes = (15, 8, 12, 15)  # one graph is for any length from the second on
        told = [model.evaluate(x, y, batch_size=size, verbose=0) for size in sizes]
        return {**figures, "told": told}
