"""tf.data: shuffled anew each epoch, batched, mapped; the last batch is small."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(28)

x = np.random.randn(73, 5).astype("float32")
y = np.random.randint(0, 2, (73, 1)).astype("float32")
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(73).batch(16)
train = train.map(lambda a, b: (a * 2.0 - 0.5, b)).prefetch(2)
test = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)

model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.SGD(0.2), "binary_crossentropy", metrics=["accuracy"])
log = model.fit(train, epochs=3, validation_data=test, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
