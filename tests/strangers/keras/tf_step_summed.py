"""A train_step whose loss is the sum over its batch, with a penalty beside it."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(301)


class Summed(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.sum(ops.square(y - y_pred)) + ops.sum(self.losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


x = np.random.randn(70, 5).astype("float32")
y = np.random.randn(70, 1).astype("float32")
inputs = keras.Input((5,))
hidden = layers.Dense(6, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
model = Summed(inputs, layers.Dense(1)(hidden))
model.compile(keras.optimizers.SGD(0.005))
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
