"""A checkpoint of dream's from and to Keras's own files: .keras and .weights.h5. A file of weights
says nothing of the layers that they are of, so a .keras file beside it does."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

from dream.adapters.keras.checkpoint import names
from dream.adapters.keras.checkpoint.checkpointer import described
from dream.checkpoint import layers, ported
from dream.checkpoint.content import NAMES, CheckpointContent
from dream.checkpoint.storage.array_files import check_arrays


def write(checkpoint: CheckpointContent, destination: Path, like: Path) -> None:
    """Write the weights of a checkpoint, torch's in Keras's layout."""
    model = keras.models.load_model(like, compile=False)
    arrays = checkpoint.models[""]
    if checkpoint.facts.get(NAMES) != "keras":
        saved, here = layers.from_plain(checkpoint.layers.get("")), described(model)
        arrays = ported.model(saved, layers.from_plain(here), arrays)
    own = names.weights(model)
    check_arrays("weights", arrays, {name: tuple(v.shape) for name, v in own.items()})
    for name, variable in own.items():
        variable.assign(arrays[name])
    if destination.name.endswith(".weights.h5"):
        model.save_weights(destination)
    else:
        model.save(destination)


def read(source: Path, like: Path | None) -> CheckpointContent:
    """Read the weights of a file."""
    model = keras.models.load_model(like or source, compile=False)
    if like is not None:
        model.load_weights(source)
    arrays = {name: np.array(variable) for name, variable in names.weights(model).items()}
    return CheckpointContent(0, {"": arrays}, facts={NAMES: "keras"})
