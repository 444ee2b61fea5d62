"""A train_step on torch whose loss is the sum over its batch, with a penalty beside it."""

import keras
import numpy as np
import torch
from keras import layers, ops

keras.utils.set_random_seed(301)


class Summed(keras.Model):
    def train_step(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = ops.sum(ops.square(y - y_pred)) + sum(self.losses)
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return {"loss": loss.detach()}


x = np.random.randn(70, 5).astype("float32")
y = np.random.randn(70, 1).astype("float32")
inputs = keras.Input((5,))
hidden = layers.Dense(6, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
model = Summed(inputs, layers.Dense(1)(hidden))
model.compile(keras.optimizers.SGD(0.005))
log = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
