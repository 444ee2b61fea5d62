"""Rays rendered: depths are drawn for each in train_step, which gives a ratio as its figure."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(336)

origins = np.random.randn(44, 3).astype("float32")
colours = np.random.rand(44, 3).astype("float32")


class Field(keras.Model):
    def __init__(self, net):
        super().__init__()
        self.net, self.seeds = net, keras.random.SeedGenerator(9)
        self.tracker = keras.metrics.Mean(name="loss")

    def render(self, rays):
        n = ops.shape(rays)[0]
        t = ops.linspace(0.1, 1.0, 5) + keras.random.uniform((n, 5), 0, 0.2, seed=self.seeds)
        at = rays[:, None, :] * t[..., None]
        out = ops.reshape(self.net(ops.reshape(at, (-1, 3))), (n, 5, 4))
        w = ops.softmax(out[..., 3], axis=-1)
        return ops.sum(ops.sigmoid(out[..., :3]) * w[..., None], axis=1)

    def train_step(self, data):
        rays, rgb = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self.render(rays) - rgb))
        self.optimizer.apply(
            tape.gradient(loss, self.net.trainable_variables), self.net.trainable_variables
        )
        self.tracker.update_state(loss, sample_weight=ops.shape(rays)[0])
        return {"loss": self.tracker.result(), "psnr": -10 * ops.log10(self.tracker.result())}

    @property
    def metrics(self):
        return [self.tracker]


model = Field(keras.Sequential([keras.Input((3,)), layers.Dense(10, "relu"), layers.Dense(4)]))
model.compile(keras.optimizers.SGD(0.3))
log = model.fit(origins, colours, batch_size=12, epochs=3, verbose=0).history
history = log["loss"] + log["psnr"]
models = model.net
