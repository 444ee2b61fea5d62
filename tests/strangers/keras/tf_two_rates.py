"""Two optimizers that clip, for two parts of a model, in one train_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(334)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")


class Two(keras.Model):
    def compile(self, first, second, **kwargs):
        super().compile(optimizer=first, **kwargs)
        self.second = second

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        early, late = self.layers[1].trainable_variables, self.layers[2].trainable_variables
        grads = tape.gradient(loss, early + late)
        self.optimizer.apply_gradients(zip(grads[: len(early)], early))
        self.second.apply_gradients(zip(grads[len(early) :], late))
        for m in self.metrics:
            if m.name == "loss":
                m.update_state(loss)
            else:
                m.update_state(y, self(x, training=False))
        return {m.name: m.result() for m in self.metrics}


seen = keras.Input((6,))
model = Two(seen, layers.Dense(1)(layers.Dense(9, "tanh")(seen)))
model.compile(
    keras.optimizers.SGD(0.1, clipnorm=0.3),
    keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    loss="mse",
    metrics=["mae"],
)
log = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
