"""A loop around a GradientTape over a model that normalises by the batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(46)

x = np.random.randn(64, 6).astype("float32")
y = np.random.randn(64, 1).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(1)]
)
optimizer = keras.optimizers.SGD(0.05)

history = []
for _ in range(2):
    for a, b in data:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(tf.square(b - model(a, training=True)))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    history.append(float(value))
