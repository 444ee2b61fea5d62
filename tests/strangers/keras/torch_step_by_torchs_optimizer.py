"""A train_step that steps by an optimizer of torch's, as those who come from torch write it."""

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(373)


class Trained(keras.Model):
    def train_step(self, data):
        x, y = data
        self.by.zero_grad()
        loss = torch.nn.functional.mse_loss(self(x, training=True), y)
        loss.backward()
        self.by.step()
        return {"loss": loss.detach()}


x = np.random.randn(75, 6).astype("float32")
y = x @ np.random.randn(6, 2).astype("float32")
inputs = keras.Input((6,))
model = Trained(inputs, layers.Dense(2)(layers.Dense(8, "relu")(inputs)))
model.by = torch.optim.SGD([v.value for v in model.trainable_variables], lr=0.05, momentum=0.9)
model.compile()
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
