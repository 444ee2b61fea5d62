"""`dream.keras.Checkpoint`: what a user gives to fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, final

import keras

from dream._errors import ConfigurationError, Unsupported
from dream.cluster import settings


@final
class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Saves in fit, and has fit go on where the newest checkpoint in a folder stands: in
    mid-epoch, under any strategy and number of ranks.

    path: a folder for checkpoints, made where there is none; None for that of `dream run
        --checkpoint`, and without one nothing is saved.
    every: so many steps, or "epoch"; None for "epoch", in the launcher's folder as often as it was
        told to (--every). The end of fit is saved too.
    keep: how many of the newest stay. best: a name in fit's logs whose smallest value stays too;
        epochs' ends are saved then.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        every: int | Literal["epoch"] | None = None,
        keep: int = 3,
        best: str | None = None,
    ) -> None:
        super().__init__()
        steps = isinstance(every, int) and not isinstance(every, bool) and every > 0
        if not steps and every not in ("epoch", None):
            raise ConfigurationError(
                "A checkpoint is saved every so many steps, or every epoch. Received: "
                f"every={every!r}. Give a number of steps, or 'epoch'."
            )
        if keep < 1:
            raise ConfigurationError(
                f"At least one checkpoint is kept. Received: keep={keep}. Give 1 or more."
            )
        asked = settings.checkpoints()
        self.path = asked.folder if path is None else Path(path)
        self.seconds = asked.every if path is None and every is None else None
        """Between two, where neither steps nor epochs say when."""

        self.every = every or (None if self.seconds else "epoch")
        self.keep, self.best = keep, best
        self.taken = False
        """Whether the fit that runs is one that dream saves."""

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.taken and self.path is not None:
            raise Unsupported(
                "This fit cannot be saved and gone on with. Received: dream.keras.Checkpoint for "
                f"{self.model.name!r}, which was made outside of a block, trains under "
                "'parameter_server', or reads data of an order that no other process finds "
                "again (a tf.data.Dataset, a generator, a DataLoader). Make the model in `with "
                "dream.strategy(...)` ('single' is a strategy too), and give fit arrays or a "
                "keras.utils.PyDataset."
            )
