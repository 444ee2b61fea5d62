"""Rank 1 is killed; rank 0 prints what it is told. On the command line:
FRAMEWORK REDUCTION, and "fit" where it is to happen in Keras's training."""

import os
import signal
import sys
from collections.abc import Callable

import numpy as np

import dream


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def calling(framework: str, reduction: str) -> Callable[[], object]:
    c = dream.communicator(reduction, framework=framework)
    c.barrier()
    if c.rank == 1:
        die()
    return lambda: c.all_reduce(np.ones(2, np.float32), "sum")


def fitting(framework: str, reduction: str) -> Callable[[], object]:
    os.environ["KERAS_BACKEND"] = framework
    import keras

    class Dying(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if batch == 5 and strategy.topology.rank == 1:
                die()

    x = np.ones((4000, 4), np.float32)
    with dream.strategy("mirrored", framework=framework, reduction=reduction) as strategy:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0)
    return lambda: model.fit(x, x[:, :1], batch_size=4, epochs=50, verbose=0, callbacks=[Dying()])


act = (fitting if sys.argv[3:] else calling)(*sys.argv[1:3])
try:
    act()
except dream.DreamError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
os._exit(0)
