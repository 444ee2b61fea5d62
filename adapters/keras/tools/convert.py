"""A checkpoint of dream's from and to Keras's own files: .keras and .weights.h5. A file of weights
says nothing of the layers that they are of, so a .keras file beside it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.keras.checkpoint import names
from dream.checkpoint.content import NAMES, CheckpointContent
from dream.checkpoint.storage.array_files import check_arrays


def write(checkpoint: CheckpointContent, destination: Path, like: Path | None) -> None:
    """Write the weights of a checkpoint that a Keras model wrote."""
    if checkpoint.facts.get(NAMES) != "keras" or [*checkpoint.models] != [""]:
        raise Unsupported(
            "Keras's files hold one model of Keras's. Received: a checkpoint of "
            f"{checkpoint.facts.get(NAMES)}, {len(checkpoint.models)} models. Load it by "
            "strategy.load into a Keras model of the same layers, and save that."
        )
    model = _model(like, destination)
    own = names.weights(model)
    arrays = checkpoint.models[""]
    check_arrays("weights", arrays, {name: tuple(v.shape) for name, v in own.items()})
    for name, variable in own.items():
        variable.assign(arrays[name])
    if destination.name.endswith(".weights.h5"):
        model.save_weights(destination)
    else:
        model.save(destination)


def read(source: Path, like: Path | None) -> CheckpointContent:
    """Read the weights of a file."""
    if source.name.endswith(".weights.h5"):
        model = _model(like, source)
        model.load_weights(source)
    else:
        model = keras.models.load_model(source, compile=False)
    arrays = {name: np.array(variable) for name, variable in names.weights(model).items()}
    return CheckpointContent(0, {"": arrays}, facts={NAMES: "keras"})


def _model(like: Path | None, path: Path) -> Any:
    if like is None or not like.is_file():
        raise ConfigurationError(
            f"Which layers these weights are of, the file does not say. Received: {path}, "
            f"--like={like}. Give --like MODEL.keras, a file of the same model."
        )
    return keras.models.load_model(like, compile=False)
