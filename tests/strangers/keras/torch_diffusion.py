"""A denoising model whose train_step draws times and noise by torch."""

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(353)
STEPS = 20


class Denoiser(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = keras.Sequential([layers.Dense(24, "silu"), layers.Dense(4)])
        self.kept = torch.cumprod(1.0 - torch.linspace(1e-3, 0.3, STEPS), 0)
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        x, t = inputs
        return self.body(torch.cat([x, t[:, None] / STEPS], dim=1))

    def train_step(self, x):
        self.zero_grad()
        t = torch.randint(0, STEPS, (len(x),))
        noise = torch.randn_like(x)
        kept = self.kept[t][:, None]
        told = self((kept.sqrt() * x + (1 - kept).sqrt() * noise, t.float()), training=True)
        loss = torch.nn.functional.mse_loss(told, noise)
        loss.backward()
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([w.value.grad for w in weights], weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


x = np.random.randn(75, 4).astype("float32")
model = Denoiser()
model((torch.zeros(2, 4), torch.zeros(2)))
model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
log = model.fit(x, batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
