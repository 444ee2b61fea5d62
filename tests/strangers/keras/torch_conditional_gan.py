"""A conditional GAN on torch: labels beside images, R1 penalty, an EMA generator, by train_step."""

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(351)

x = np.random.rand(44, 6).astype("float32")
c = np.eye(2)[np.random.randint(0, 2, 44)].astype("float32")


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.d = keras.Sequential([keras.Input((8,)), layers.Dense(9, "swish"), layers.Dense(1)])
        self.g = keras.Sequential(
            [keras.Input((5,)), layers.Dense(9, "relu"), layers.Dense(6, "sigmoid")]
        )
        self.ema = keras.models.clone_model(self.g)
        self.seeds = keras.random.SeedGenerator(3)
        self.d_loss, self.g_loss = keras.metrics.Mean(name="d"), keras.metrics.Mean(name="g")
        self.built = True

    def compile(self, d_opt, g_opt):
        super().compile()
        self.d_opt, self.g_opt = d_opt, g_opt

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def train_step(self, data):
        x, c = data
        n = x.shape[0]
        z = torch.cat([keras.random.normal((n, 3), seed=self.seeds), c], 1)
        fake = torch.cat([self.g(z), c], 1)
        real = torch.cat([x, c], 1).requires_grad_()
        self.zero_grad()
        on_real = self.d(real)
        (slope,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
        loss = (
            torch.nn.functional.softplus(-on_real).mean()
            + torch.nn.functional.softplus(self.d(fake.detach())).mean()
            + slope.square().sum(1).mean()
        )
        loss.backward()
        with torch.no_grad():
            self.d_opt.apply(
                [v.value.grad for v in self.d.trainable_weights], self.d.trainable_weights
            )
        self.zero_grad()
        g_loss = torch.nn.functional.softplus(-self.d(fake)).mean()
        g_loss.backward()
        with torch.no_grad():
            self.g_opt.apply(
                [v.value.grad for v in self.g.trainable_weights], self.g.trainable_weights
            )
            for e, w in zip(self.ema.weights, self.g.weights):
                e.assign(0.9 * e + 0.1 * w)
        self.d_loss.update_state(loss, n)
        self.g_loss.update_state(g_loss, n)
        return {m.name: m.result() for m in self.metrics}


model = Gan()
model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
log = model.fit(x, c, batch_size=12, epochs=3, verbose=0).history
history = log["d"] + log["g"]
models = {"d": model.d, "g": model.g, "ema": model.ema}
