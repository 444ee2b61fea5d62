"""A Keras script for `dream run`, in which something goes wrong once.

Usage: server_fault_keras.py MODE FOLDER, MODE one of kill, server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from server_job_marks import Faults

import dream

MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK = int(os.environ["RANK"])
FAULTS = Faults(MODE, FOLDER, RANK)


class Wrong(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        FAULTS.begin_batch()


draw = np.random.default_rng(0)
x = draw.normal(size=(200, 8)).astype("float32")
every = 5 if MODE == "server" else None
with dream.strategy(
    "parameter_server", workers=2, servers=1, staleness=8, snapshot_every=every
) as strategy:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(x, np.abs(x).argmax(1), batch_size=5, epochs=2, verbose=0, callbacks=[Wrong()])
if RANK == 0:
    print(strategy.staleness(), "optimizer counts", int(model.optimizer.iterations))
