"""What fit() does, customised on the torch backend; it returns a nested dict."""

import keras
import numpy as np
import torch
from keras import layers, ops

keras.utils.set_random_seed(52)


class Custom(keras.Model):
    def train_step(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=ops.shape(x)[0])
            else:
                metric.update_state(y, y_pred)
        return {"parts": {m.name: m.result() for m in self.metrics}}


x, y = np.random.random((83, 6)), np.random.random((83, 1))
inputs = keras.Input((6,))
model = Custom(inputs, layers.Dense(1)(layers.Dense(5, "relu")(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
log = model.fit(x, y, epochs=3, batch_size=16, verbose=0)

history = [value for name in sorted(log.history) for value in log.history[name]]
