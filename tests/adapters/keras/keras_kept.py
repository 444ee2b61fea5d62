"""What steps of one's own keep beside variables, and loaders that scripts read beside fit."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras_own_numbers import ended, numbers
from keras_own_steps import WIDTH, OwnStep, own, said_lines

import dream

__all__ = ["ended", "told", "told_of_python"]
Loss = Callable[[Any, Any, Any], Any]
ROWS, BATCH = 48, 8


def _data() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
    return x, np.abs(x[:, :1])


def _keeping(loss: Loss, kind: type[OwnStep] = OwnStep, **kept: Any) -> Any:
    """A model that keeps things, trained by a loss that goes by them."""
    keras.utils.set_random_seed(3)
    seen = keras.Input((WIDTH,))
    made = kind(seen, layers.Dense(1)(seen))
    made.own_loss = loss
    made.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    for name, value in kept.items():
        setattr(made, name, value)
    made.fit(*_data(), batch_size=BATCH, epochs=2, verbose=0)
    return made


def _scaled(model: Any, x: Any, y: Any, scale: Any) -> Any:
    return ops.mean(ops.square(y - model(x * scale, training=True)))


@numbers
def generators_of_its_own() -> list[Any]:
    def loss(model: Any, x: Any, y: Any) -> Any:
        scale = float(model.numpy.uniform()) + model.old.uniform() + model.python.random()
        return _scaled(model, x, y, scale)

    kept = {"numpy": np.random.default_rng(0), "old": np.random.RandomState(0)}
    return list(_keeping(loss, **kept, python=random.Random(0)).get_weights())


@numbers
def what_it_counts() -> list[Any]:
    """In a list, a queue of a length, a dict and an array, and by what is not there before."""

    def loss(model: Any, x: Any, y: Any) -> Any:
        model.listed.append(1)
        model.queued.append(len(model.listed))
        model.named["steps"] += 1
        model.ordered[len([*model.ordered])] = 1
        model.places[0] += 1
        model.anew = getattr(model, "anew", 0) + 1
        model.none = 1 if model.none is None else model.none + 1
        first, model.begun = not model.begun, True
        counted = model.anew + model.none + sum(model.queued) + model.named["steps"]
        return _scaled(model, x, y, 0.01 * (counted + float(model.places[0])) + 2.0 * first)

    kept = {"listed": [], "queued": deque(maxlen=4), "named": {"steps": 0}, "none": None}
    made = _keeping(loss, **kept, ordered=OrderedDict(), places=np.zeros(2), begun=False)
    return [
        *made.get_weights(),
        len([*made.ordered]),
        len(made.listed),
        made.named["steps"],
        made.anew,
        made.none,
    ]


_DRAWN = random.Random()


def _helped(x: Any) -> Any:
    return x * _DRAWN.uniform(0.5, 1.5)


@numbers
def what_its_functions_go_by() -> list[Any]:
    """Generators and a number of a layer's, a step's and a helper's globals and closures."""
    _DRAWN.seed(5)
    drawn, calls = np.random.default_rng(0), 0

    class Scales(layers.Layer):  # type: ignore[misc]
        def call(self, x: Any, training: bool = False) -> Any:
            return x * float(drawn.uniform(0.5, 1.5)) if training else x

    def loss(model: Any, x: Any, y: Any) -> Any:
        nonlocal calls
        calls += 1
        return _scaled(model, _helped(x), y, 1.0 + 0.1 * calls)

    keras.utils.set_random_seed(3)
    seen = keras.Input((WIDTH,))
    made = OwnStep(seen, layers.Dense(1)(Scales()(seen)))
    made.own_loss = loss
    made.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    made.fit(*_data(), batch_size=BATCH, epochs=2, verbose=0)
    return [*made.get_weights(), calls, drawn.uniform(), _DRAWN.random()]


@numbers
def an_iterator_of_its_own() -> list[Any]:
    """Of which a step takes something each time. What a trial would take cannot be put back."""
    made = _keeping(
        lambda model, x, y: _scaled(model, x, y, next(model.numbers)),
        numbers=iter(np.linspace(0.5, 1.5, 40)),
    )
    return [*made.get_weights(), next(made.numbers)]


@numbers
def tensors_and_generators_of_torch() -> list[Any]:
    import torch

    def loss(model: Any, x: Any, y: Any) -> Any:
        model.written.add_(0.1)
        model.again = model.again * 0.9 + 0.1
        scale = torch.rand((), generator=model.generator) + model.written + model.again
        return _scaled(model, x, y, scale)

    kept = {"written": torch.zeros(()), "again": torch.zeros(())}
    made = _keeping(loss, **kept, generator=torch.Generator().manual_seed(0))
    return [*made.get_weights(), float(made.written), float(made.again)]


class _Accumulates(OwnStep):
    """Lets gradients add up over three batches, as torch does where nobody sets them to 0."""

    def train_step(self, batch: Any) -> Any:
        import torch

        x, y = batch
        (_scaled(self, x, y, 1.0) / 3).backward()
        self.batches += 1
        if self.batches % 3 == 0:
            variables = self.trainable_variables
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in variables], variables)
            self.zero_grad()
        return {"batches": float(self.batches)}


@numbers
def gradients_that_add_up() -> list[Any]:
    return list(_keeping(lambda *_: None, _Accumulates, batches=0).get_weights())


@numbers
def what_a_loss_and_its_like_count() -> list[Any]:
    """A loss, a metric and a regularizer, which Keras on torch calls once to find out shapes."""
    calls, drawn = {"loss": 0, "penalty": 0}, np.random.default_rng(0)

    def counted(y: Any, found: Any) -> Any:
        calls["loss"] += 1
        return ops.mean(ops.square(y - found), axis=-1) * calls["loss"]

    def penalty(weights: Any) -> Any:
        calls["penalty"] += 1
        return 0.001 * calls["penalty"] * ops.sum(ops.square(weights))

    def noisy(_: Any, found: Any) -> Any:
        return ops.abs(found)[:, 0] * float(drawn.uniform(0.5, 1.5))

    _as_alone()
    x, y = _data()
    layer = layers.Dense(1, kernel_regularizer=penalty)
    made = keras.Sequential([keras.Input((WIDTH,)), layer])
    made.compile(keras.optimizers.SGD(0.01), counted, metrics=[noisy])
    logs = made.fit(x, y, batch_size=13, epochs=2, validation_split=0.2, verbose=0).history
    batch = made.train_on_batch(x[:5], y[:5])
    return [*made.get_weights(), *logs.values(), batch, *calls.values(), drawn.uniform()]


def _loader(batch: int = BATCH, **options: Any) -> Any:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*map(torch.from_numpy, _data())), batch, **options)


@numbers
def a_loader_in_a_step() -> list[Any]:
    """Begun before fit, and in the step."""
    beside, within = iter(_loader(4, shuffle=True)), _loader(4, shuffle=True)

    def loss(model: Any, x: Any, y: Any) -> Any:
        if model.within is None:
            model.within = iter(within)
        other = ops.mean(model(next(beside)[0]) ** 2) + ops.mean(model(next(model.within)[0]) ** 2)
        return _scaled(model, x, y, 1.0) + 0.1 * other

    made = _keeping(loss, within=None)
    return list(made.get_weights())


def _as_alone() -> None:
    """Rank 0 has made the same models before: torch's own names of what they hold are by number."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)


@numbers
def loaders_beside_fit() -> list[Any]:
    """Predicted, read by a callback, and by a loop over a model in eval mode; beside another model,
    which trains."""
    _as_alone()
    made, other = own(lambda *given: _scaled(*given, 1.0)), keras.layers.Dense(2)
    other.build((None, WIDTH))
    loader, seen = _loader(), []

    def after(*_: Any, **__: Any) -> None:
        seen.append(sum(float(made(x, training=False).sum()) for x, _ in loader))

    told = keras.callbacks.LambdaCallback(on_epoch_end=after)
    made.fit(_loader(), epochs=2, callbacks=[told], verbose=0)
    drawn = ((x,) for x, _ in loader)
    answers = [made.predict(given, verbose=0) for given in (loader, drawn)]
    return [*answers, made.predict(loader, steps=2, verbose=0), seen]


@numbers
def a_model_called_between_steps() -> list[Any]:
    """By a callback of fit, and by a loop that trains on batches: gradients are on, which nobody
    asks for."""
    _as_alone()
    made = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = _data()
    seen: list[float] = []  # shares of batches of 13 are uneven

    def after(*_: Any, **__: Any) -> None:
        seen.append(float(ops.sum(made(x[:5], training=False))))

    told = keras.callbacks.LambdaCallback(on_train_batch_end=after)
    made.fit(_loader(13), epochs=2, callbacks=[told], verbose=0)
    for _ in range(2):
        made.train_on_batch(x[:5], y[:5])
        after()
    return [*made.get_weights(), seen]


@numbers
def an_evaluation_with_gradients() -> list[Any]:
    _as_alone()
    made = own(lambda *given: _scaled(*given, 1.0))
    made.fit(_loader(), verbose=0)
    made.eval()
    return [sum(float(made(x, training=False).sum()) for x, _ in _loader())]


def told(names: Sequence[str]) -> dict[str, list[str]]:
    """What dream tells of torch loops over Keras models, each in a block of its own."""
    return {name: _told_of(LOOPS[name]) for name in names}


def _told_of(loop: Callable[[], None]) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    try:
        with dream.strategy("mirrored"):
            loop()
    finally:
        logging.getLogger("dream").removeHandler(handler)
    return [
        line for line in lines if not any(word in line for word in ("reduction=", "--strategy"))
    ]


def _torch_loop(loss: Callable[[Any, Any], Any], evaluated: Callable[[Any, Any], None]) -> None:
    import torch

    keras.utils.set_random_seed(3)
    made = keras.Sequential(
        [
            keras.Input((WIDTH,)), layers.Dense(5, "relu"), layers.BatchNormalization(),
            layers.Dropout(0.2), layers.Dense(1),
        ]
    )  # fmt: skip
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0)
    for x, y in _loader(shuffle=True):
        value = loss(y, made(x, training=True))
        made.zero_grad()
        value.backward()
        weights = made.trainable_weights
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in weights], weights)
    with torch.no_grad():
        for x, y in _loader():
            evaluated(y, made(x, training=False))


def _keras_loss() -> None:
    _torch_loop(keras.losses.MeanSquaredError(), lambda *_: None)


def _keras_metric() -> None:
    import torch

    metric = keras.metrics.MeanSquaredError()
    _torch_loop(torch.nn.functional.mse_loss, metric.update_state)
    with torch.no_grad():
        float(metric.result())


def told_of_python(eagerly: bool) -> list[str]:
    """What dream tells of a loss that counts and a step that draws, and of neither."""
    drawn = np.random.default_rng(0)

    class Counts(keras.losses.Loss):  # type: ignore[misc]
        calls = 0

        def call(self, y: Any, found: Any) -> Any:
            self.calls += 1
            return ops.square(y - found) * self.calls

    def noisy(model: Any, x: Any, y: Any) -> Any:
        return _scaled(model, x, y, float(drawn.uniform()))

    def fitted(loss: Any, own_loss: Any = None) -> str:
        seen = keras.Input((WIDTH,))
        made = (OwnStep if own_loss else keras.Model)(seen, layers.Dense(1)(seen))
        made.own_loss = own_loss
        made.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=eagerly)
        with said_lines() as lines:
            made.fit(*_data(), batch_size=BATCH, verbose=0)
        return "".join(line.partition("Received: ")[2] for line in lines if "in Python" in line)

    with dream.strategy("mirrored"):
        return [fitted("mse"), fitted(Counts()), fitted("mse", noisy)]


LOOPS = {"Keras's loss": _keras_loss, "Keras's metric": _keras_metric}
