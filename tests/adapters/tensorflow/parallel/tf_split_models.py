"""Models and data of the tests of split Keras models. Imported by their processes alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
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


def short(variable: Any) -> str:
    """Its path without the name of the model, which Sequential puts in front."""
    model, _, rest = variable.path.partition("/")
    return rest if model.startswith("sequential") else variable.path


def entered(name: str, **options: Any) -> None:
    with dream.strategy(name, **options):
        pass


def files(strategy: Any, model: Any) -> Any:
    """What `save` and ModelCheckpoint leave, called on every rank; the last in a folder of this
    rank's own, as scripts make them with tempfile."""
    mine = Path(tempfile.mkdtemp()) / "mine.keras"
    folder = Path(strategy.communicator.broadcast_object(tempfile.mkdtemp()))
    kept = keras.callbacks.ModelCheckpoint(folder / "best.keras")
    model.fit(*data(), batch_size=16, epochs=1, shuffle=False, verbose=0, callbacks=[kept])
    model.save(folder / "whole.keras")
    strategy.communicator.barrier()
    names = sorted(path.name for path in folder.iterdir())
    model.save(mine)
    apart = [
        float(max(np.abs(a - b).max() for a, b in zip(weights(read), weights(model), strict=True)))
        for read in map(keras.saving.load_model, [*(folder / name for name in names), mine])
    ]
    refused = told(
        lambda: model.fit(
            *data(), verbose=0, callbacks=[keras.callbacks.BackupAndRestore(str(folder / "backup"))]
        )
    )
    return names, apart, refused


def alone(model: Any, rank: int) -> tuple[Any, Any]:
    """What each rank is told where rank 0 reads, or sets, what all should."""
    read = told(
        model.get_weights if rank == 0 else lambda: model.fit(*data(), batch_size=16, verbose=0)
    )
    if rank == 0:
        model.set_weights([np.zeros(v.shape, np.float32) for v in model.variables])
    return read, told(lambda: model.fit(*data(), batch_size=16, verbose=0))


def predicted(model: Any) -> np.ndarray:
    """Before it is trained, if it is new; then it is, as any other."""
    return np.asarray(model.predict(data()[0], batch_size=7, verbose=0))
