"""Gradients are added up over batches in variables of the model's own, and applied every third."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(333)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Slow(keras.Model):
    def __init__(self, *args, every=3, **kwargs):
        super().__init__(*args, **kwargs)
        self.every = every
        self.count = tf.Variable(0, dtype=tf.int32, trainable=False)
        self.kept = [
            tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.trainable_variables
        ]

    def train_step(self, data):
        x, y = data
        self.count.assign_add(1)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for kept, g in zip(self.kept, tape.gradient(loss, self.trainable_variables)):
            kept.assign_add(g / self.every)
        tf.cond(tf.equal(self.count % self.every, 0), self.apply, lambda: None)
        return {"loss": loss}

    def apply(self):
        self.optimizer.apply_gradients(
            zip([k.value() for k in self.kept], self.trainable_variables)
        )
        for kept in self.kept:
            kept.assign(tf.zeros_like(kept))


seen = keras.Input((6,))
model = Slow(seen, layers.Dense(1)(layers.Dense(9, "tanh")(seen)))
model.compile(keras.optimizers.SGD(0.2), "mse")
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0).history["loss"][:0]
