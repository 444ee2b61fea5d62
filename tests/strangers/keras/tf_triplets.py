"""Triplets as keras.io has them: call takes the whole batch, and train_step too."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(332)

x = np.random.rand(42, 3, 8, 8, 1).astype("float32")
base = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.Conv2D(4, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(6),
    ]
)
for layer in base.layers[:2]:
    layer.trainable = False


class Siamese(keras.Model):
    def __init__(self, base, margin=0.5):
        super().__init__()
        self.base, self.margin = base, margin
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        a, p, n = (self.base(v) for v in inputs)
        return ops.sum(ops.square(a - p), -1), ops.sum(ops.square(a - n), -1)

    def _loss(self, data):
        ap, an = self(data)
        return ops.mean(ops.maximum(ap - an + self.margin, 0.0))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._loss(data)
        grads = tape.gradient(loss, self.base.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.base.trainable_weights))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        self.tracker.update_state(self._loss(data))
        return {"loss": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


model = Siamese(base)
model.compile(keras.optimizers.SGD(0.1))
parts = tuple(tf.data.Dataset.from_tensor_slices(x[:, i]) for i in range(3))
data = tf.data.Dataset.zip(parts).shuffle(42, seed=2).batch(11).prefetch(2)
log = model.fit(data.take(3), epochs=3, validation_data=data.skip(3), verbose=0).history
history = [float(len(log["loss"]))] + log["loss"]
models = base
