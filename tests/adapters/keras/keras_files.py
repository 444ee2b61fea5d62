"""What Keras saves and loads on each rank of a job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import dream


@keras.saving.register_keras_serializable("tests")
class Slow(keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """Takes its time to be saved on rank 0."""

    slow = False

    def build(self, _: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return x * self.scale

    def save_own_variables(self, store: Any) -> None:
        if Slow.slow:
            time.sleep(0.4)
        super().save_own_variables(store)


def run(folder: Path) -> dict[str, Any]:
    with dream.strategy("mirrored") as strategy:
        rank = strategy.topology.rank
        Slow.slow = rank == 0
        model = keras.Sequential([keras.Input((3,)), Slow()])
        found: dict[str, Any] = {"weights": [], "model": []}
        for version in (1.0, 2.0):
            _set(model, version)
            model.save_weights(folder / "only.weights.h5")
            _set(model, 0.0)
            model.load_weights(folder / "only.weights.h5")
            found["weights"].append(_get(model))
            keras.saving.save_model(model, folder / "whole.keras")
            found["model"].append(_get(keras.models.load_model(folder / "whole.keras")))
        _set(model, 10.0 + rank)
        model.save(folder / f"rank{rank}.keras")
        found["own"] = _get(keras.models.load_model(folder / f"rank{rank}.keras"))
        model.save(folder / "link.keras")
        strategy.communicator.barrier()
        found["link"] = (folder / "link.keras").is_symlink(), (folder / "target.keras").is_file()
        found["left"] = [path.name for path in folder.glob(".*")]
    return found


def checkpoints(folders: Path) -> str:
    """What a rank is told whose ModelCheckpoint has a folder of its own."""
    with dream.strategy("mirrored") as strategy:
        folder = folders / f"of_rank_{strategy.topology.rank}"
        folder.mkdir()
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        best = keras.callbacks.ModelCheckpoint(
            folder / "best.weights.h5", save_weights_only=True, monitor="loss"
        )
        x = np.ones((8, 3), np.float32)
        model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[best])
        try:
            model.load_weights(folder / "best.weights.h5")
        except (OSError, ValueError) as error:
            return " ".join(error.__notes__)
        return "found"


def best() -> list[float]:
    """What a ModelCheckpoint has come to after fit on this rank."""
    with dream.strategy("mirrored"):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        kept = keras.callbacks.ModelCheckpoint("best.keras", monitor="loss", save_best_only=True)
        x = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
        history = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[kept])
        return [float(kept.best), float(min(history.history["loss"]))]


def of_rank_0_alone() -> float:
    """The same, where the other ranks' scripts give fit none."""
    with dream.strategy("mirrored") as strategy:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        kept = keras.callbacks.ModelCheckpoint("best.keras", monitor="loss", save_best_only=True)
        given = [kept] if strategy.topology.rank == 0 else []
        x = np.ones((8, 3), np.float32)
        history = model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=given)
        return float(history.history["loss"][0])


def _set(model: Any, value: float) -> None:
    model.set_weights([np.float32(value)])


def _get(model: Any) -> float:
    return float(model.get_weights()[0])
