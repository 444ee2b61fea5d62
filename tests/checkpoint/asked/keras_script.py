"""The same in Keras's fit."""

import json
import sys
from pathlib import Path

import keras
import long_state
import numpy as np

import dream

keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)
x, y = rng.standard_normal((48, 8), "float32"), rng.integers(0, 3, 48)


fitting = False


class Slow(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        long_state.come("loader", after=20)
        return x[index * 8 : index * 8 + 8], y[index * 8 : index * 8 + 8]


class Traced(keras.layers.Layer):
    def call(self, inputs):
        if fitting:  # Keras calls it before training begins, and as it traces a step
            long_state.come("compilation", after=0)
            long_state.come("tracing", after=1)
        return inputs


class States(keras.callbacks.Callback):
    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_test_batch_begin(self, batch, logs=None):
        long_state.come("evaluation", after=5)
        if self.epoch == 5:
            long_state.come("end", after=0)

    def on_epoch_end(self, epoch, logs=None):
        long_state.come("sleep", after=2)


with dream.strategy("mirrored") as strategy:
    model = keras.Sequential(
        [keras.Input((8,)), Traced(), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fitting = True
    model.fit(Slow(), epochs=6, verbose=0, validation_data=(x, y), callbacks=[States()])
    weights = {str(i): w.tolist() for i, w in enumerate(model.get_weights())}
    if strategy.topology.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(weights))
