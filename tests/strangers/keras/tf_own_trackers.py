"""train_step with a loss and trackers of its own, and a plain mean of batch losses."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(51)


class Custom(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae.result()}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred))
        self.mae.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


x = np.random.random((85, 6)).astype("float32")
y = np.random.random((85, 1)).astype("float32")
inputs = keras.Input((6,))
hidden = layers.Dropout(0.1)(layers.Dense(7, "relu")(inputs))
model = Custom(inputs, layers.Dense(1)(hidden))
model.compile(optimizer=keras.optimizers.SGD(0.1))
log = model.fit(x, y, epochs=3, batch_size=16, verbose=0)

history = [*log.history["loss"], *log.history["mae"], *model.evaluate(x, y, verbose=0)]
