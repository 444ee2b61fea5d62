"""Two noisy views of each sample attract each other, and repel those of the rest of the batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(322)


class Contrastive(keras.Model):
    def __init__(self):
        super().__init__()
        self.noise = layers.GaussianNoise(0.3, seed=1)
        self.encoder = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(4)]
        )
        self.tracker = keras.metrics.Mean(name="c_loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            one = self.encoder(self.noise(x, training=True))
            two = self.encoder(self.noise(x, training=True))
            one, two = ops.normalize(one), ops.normalize(two)
            alike = ops.matmul(one, ops.transpose(two)) / 0.2
            own = ops.arange(ops.shape(x)[0])
            loss = ops.mean(
                keras.losses.sparse_categorical_crossentropy(own, alike, from_logits=True)
            )
        weights = self.encoder.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"c_loss": self.tracker.result()}


x = np.random.randn(64, 6).astype("float32")
contrast = Contrastive()
contrast.compile(keras.optimizers.SGD(0.2))
contrast.fit(x, batch_size=16, epochs=2, verbose=0)

models = [contrast.encoder]
