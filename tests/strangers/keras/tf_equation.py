"""A physics-informed net: second derivatives at the batch's points, two fixed points beside."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(335)

points = np.random.uniform(0, 1, (50, 1)).astype("float32")


class Equation(keras.Model):
    def train_step(self, data):
        t = data[0] if isinstance(data, tuple) else data
        edge = tf.constant([[0.0], [1.0]])
        with tf.GradientTape() as tape:
            with tf.GradientTape() as second:
                second.watch(t)
                with tf.GradientTape() as first:
                    first.watch(t)
                    u = self(t, training=True)
                du = first.gradient(u, t)
            ddu = second.gradient(du, t)
            loss = tf.reduce_mean(tf.square(ddu + u)) + tf.reduce_mean(
                tf.square(self(edge) - tf.constant([[0.0], [0.84]]))
            )
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


seen = keras.Input((1,))
model = Equation(seen, layers.Dense(1)(layers.Dense(8, "tanh")(layers.Dense(8, "tanh")(seen))))
model.compile(keras.optimizers.SGD(0.01))
history = model.fit(points, batch_size=16, epochs=3, verbose=0).history["loss"][:0]
