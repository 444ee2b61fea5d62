"""What ranks do together in the tests of Keras models whose parts lie on several."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from split_parts import branches
from split_scenes import data, fitted, loss, momentum, overflowing, stepped, told, weights, wide

import dream


def two() -> dict[str, Any]:
    """Two stages on two ranks."""
    found: dict[str, Any] = {}
    with dream.strategy("model_parallel", split="pipeline", stages=["fc2"]) as strategy:
        rank = strategy.topology.rank
        model = fitted(wide())
        found["weights"] = weights(model)
        found["here"] = [kind_of(v) for v in model.variables]
        found["slots"] = [kind_of(v) for v in model.optimizer.variables if v.shape.rank]
        stepping = wide()
        found["losses"] = stepped(strategy, stepping, momentum(global_clipnorm=0.05))
        found["clipped"] = weights(stepping)
        found["predicted"] = predicted(wide())
        found["penalised"] = penalised()
        found["files"] = files(strategy, model)
        found["accumulating"] = told(
            lambda: fitted(wide(), momentum(global_clipnorm=1.0, gradient_accumulation_steps=2))
        )
        found["overflowing"] = overflowing()
        found["by hand"] = told(lambda: momentum().apply([], []))
        found["alone"] = alone(model, rank)  # the last: the ranks differ from then on
    with dream.strategy("model_parallel", split="pipeline", balance="time"):
        found["timed"] = weights(fitted(wide()))
    with dream.strategy("model_parallel", split="layers", place={"left": 0, "right": 1, "join": 1}):
        placed = fitted(branches())
        found["layers"] = [kind_of(v) for v in placed.variables], weights(placed)
    return found


def four() -> dict[str, Any]:
    """Two rows of two stages."""
    found: dict[str, Any] = {}
    with dream.strategy("hybrid", data=2, model=2) as strategy:
        model = fitted(wide(), momentum(global_clipnorm=0.05))
        found["weights"] = weights(model)
        found["predicted"] = predicted(model)
        stepping = wide()
        found["losses"] = stepped(strategy, stepping)
        found["stepped"] = weights(stepping)
    return found


def kind_of(variable: Any) -> str:
    return type(variable.value).__name__


def predicted(model: Any) -> np.ndarray:
    """Before it is trained, if it is new; then it is, as any other."""
    return np.asarray(model.predict(data()[0], batch_size=7, verbose=0))


def penalised() -> dict[str, Any]:
    """Two outputs, of two ranks; layers with penalties on both."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    hidden = layers.Dense(8, kernel_regularizer="l2", name="fc1")(inputs)
    kind = layers.Dense(4, kernel_regularizer="l2", name="fc2")(hidden)
    model = keras.Model(inputs, {"kind": kind, "again": hidden})
    model.compile(momentum(), {"kind": loss(), "again": "mse"}, metrics={"kind": ["accuracy"]})
    x, y = data()
    target = {"kind": y, "again": x}
    history = model.fit(x, target, batch_size=16, epochs=2, shuffle=False, verbose=0)
    tested = model.evaluate(x, target, batch_size=16, verbose=0, return_dict=True)
    return {"history": history.history, "tested": tested, "weights": weights(model)}


def files(strategy: Any, model: Any) -> Any:
    """What `save` and ModelCheckpoint leave, called on every rank."""
    folder = Path(strategy.communicator.broadcast_object(tempfile.mkdtemp()))
    kept = keras.callbacks.ModelCheckpoint(folder / "best.keras")
    model.fit(*data(), batch_size=16, epochs=1, shuffle=False, verbose=0, callbacks=[kept])
    model.save(folder / "whole.keras")
    strategy.communicator.barrier()
    names = sorted(path.name for path in folder.iterdir())
    apart = [
        float(max(np.abs(a - b).max() for a, b in zip(weights(read), weights(model), strict=True)))
        for read in (keras.saving.load_model(folder / name) for name in names)
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


def one() -> dict[str, Any]:
    """The same on one device."""
    found: dict[str, Any] = {}
    with dream.strategy("single") as strategy:
        found["weights"] = weights(fitted(wide()))
        clipped = wide()
        found["losses"] = stepped(strategy, clipped, momentum(global_clipnorm=0.05))
        found["clipped"] = weights(clipped)
        stepping = wide()
        found["plain losses"] = stepped(strategy, stepping)
        found["predicted"] = predicted(wide())
        found["clipped by fit"] = weights(model := fitted(wide(), momentum(global_clipnorm=0.05)))
        found["predicted after"] = predicted(model)
        found["penalised"] = penalised()
        found["layers"] = weights(fitted(branches()))
        found["overflowing"] = overflowing()
    return found
