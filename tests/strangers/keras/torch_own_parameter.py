"""Two tasks are weighed by a parameter of torch's, which train_step steps by hand."""

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(311)


class Weighing(keras.Model):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.log_sigma = torch.zeros(2, requires_grad=True)

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        error = (y - self(x, training=True)).square().mean(0)
        loss = (torch.exp(-self.log_sigma) * error + self.log_sigma).sum()
        loss.backward()
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([w.value.grad for w in weights], weights)
            self.log_sigma -= 0.1 * self.log_sigma.grad
            self.log_sigma.grad = None
        return {"loss": loss}


x = np.random.randn(68, 5).astype("float32")
y = x[:, :2] * [1.0, 5.0] + np.random.randn(68, 2)
inputs = keras.Input((5,))
model = Weighing(inputs, layers.Dense(2)(layers.Dense(6, "relu")(inputs)))
model.compile(keras.optimizers.SGD(0.05))
log = model.fit(x, y.astype("float32"), batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
