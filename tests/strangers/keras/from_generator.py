"""tf.data of unknown length: from_generator, filtered, batched."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(29)

rows = np.random.randn(80, 4).astype("float32")
marks = np.random.randint(0, 3, 80)


def examples():
    for row in np.random.permutation(80):
        yield rows[row], marks[row]


kinds = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((), tf.int32))
data = tf.data.Dataset.from_generator(examples, output_signature=kinds)
data = data.filter(lambda row, mark: (row[0] > -1.0) | (mark == 0)).batch(13)

model = keras.Sequential([keras.Input((4,)), layers.Dense(7, "relu"), layers.Dense(3, "softmax")])
model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
log = model.fit(data, epochs=3, validation_data=data, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
history += model.evaluate(data, verbose=0)
