"""Two tasks are weighed by variables of TensorFlow's, which train_step steps by hand."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(303)


class Weighing(keras.Model):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.log_sigma = tf.Variable([0.0, 0.0])

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = ops.mean(ops.square(y - self(x, training=True)), axis=0)
            loss = ops.sum(tf.exp(-self.log_sigma) * error + self.log_sigma)
        own, of_sigma = tape.gradient(loss, [self.trainable_variables, self.log_sigma])
        self.optimizer.apply(own, self.trainable_variables)
        self.log_sigma.assign_sub(0.1 * of_sigma)
        return {"loss": loss}


x = np.random.randn(68, 5).astype("float32")
y = x[:, :2] * [1.0, 5.0] + np.random.randn(68, 2)
inputs = keras.Input((5,))
model = Weighing(inputs, layers.Dense(2)(layers.Dense(6, "relu")(inputs)))
model.compile(keras.optimizers.SGD(0.05))
log = model.fit(x, y.astype("float32"), batch_size=16, epochs=3, verbose=0)

history = log.history["loss"]
