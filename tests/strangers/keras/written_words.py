"""Handwriting: a recurrent net and the CTC loss, as a loss and as a layer that adds it."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(312)

x = np.random.randn(34, 8, 5).astype("float32")
y = np.random.randint(1, 4, (34, 3))


class Ctc(layers.Layer):
    def call(self, y_true, y_pred):
        n = ops.shape(y_true)[0]
        ones = ops.ones((n,), dtype="int32")
        loss = ops.ctc_loss(y_true, y_pred, 3 * ones, 8 * ones, mask_index=0)
        self.add_loss(ops.mean(loss))
        return y_pred


def tower(seen):
    return layers.Dense(5)(layers.GRU(6, return_sequences=True)(seen))


seen, label = keras.Input((8, 5)), keras.Input((3,), dtype="int32")
one = keras.Model([seen, label], Ctc()(label, tower(seen)))
one.compile(keras.optimizers.SGD(0.02))
history = list(one.fit([x, y], batch_size=10, epochs=2, verbose=0).history["loss"])
seen = keras.Input((8, 5))
two = keras.Model(seen, layers.Softmax()(tower(seen)))
two.compile(keras.optimizers.SGD(0.02), keras.losses.CTC())
history += two.fit(x, y, batch_size=10, epochs=2, verbose=0).history["loss"]
models = {"one": one, "two": two}
