"""A variational autoencoder's sampling, and a mask, by TensorFlow's own random ops."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(347)


class Sampling(layers.Layer):
    def call(self, mean, log_variance, training=None):
        if not training:
            return mean
        noise = tf.random.normal(tf.shape(mean))
        return tf.nn.dropout(mean + tf.exp(0.5 * log_variance) * noise, 0.1)


x = np.random.rand(75, 10).astype("float32")
inputs = keras.Input((10,))
hidden = layers.Dense(8, "relu")(inputs)
code = Sampling()(layers.Dense(3)(hidden), layers.Dense(3)(hidden))
model = keras.Model(inputs, layers.Dense(10, "sigmoid")(code))
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
log = model.fit(x, x, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
