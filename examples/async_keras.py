"""Digits in Keras by workers that do not wait for each other. One of them is slow on purpose.

dream run -n 3 examples/async_keras.py                       two workers, one server
dream run -n 3 --strategy parameter_server:staleness=0 examples/async_keras.py      in step
dream run -n 2 --strategy mirrored examples/async_keras.py   the same script, synchronous
"""

import time

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import dream

SLOW, SECONDS = 1, 0.02  # the rank that is slow, and by how much a batch

x, y = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split((x / 16).astype("float32"), y, random_state=0)


class Sleep(keras.callbacks.Callback):
    """Makes a rank slow."""

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(SECONDS)


with dream.strategy("parameter_server", servers=1) as strategy:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss, metrics=["accuracy"])

    slow = [Sleep()] if strategy.topology.rank == SLOW else []
    begin = time.monotonic()
    model.fit(x, y, batch_size=64, epochs=20, verbose=0, callbacks=slow)
    seconds = time.monotonic() - begin

figures = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
if strategy.topology.rank == 0:
    print(f"test accuracy {figures['accuracy']:.3f} after {seconds:.1f} s")
    if strategy.name == "parameter_server":
        print(strategy.staleness())
