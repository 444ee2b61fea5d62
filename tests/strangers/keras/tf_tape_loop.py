"""A training loop from scratch around a GradientTape, over a shuffled tf.data."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(45)

x = np.random.randn(68, 6).astype("float32")
y = np.random.randint(0, 3, 68)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(16)

model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3)])
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(a, b):
    with tf.GradientTape() as tape:
        scores = model(a, training=True)
        value = loss_fn(b, scores)
    gradients = tape.gradient(value, model.trainable_weights)
    optimizer.apply(gradients, model.trainable_weights)
    accuracy.update_state(b, scores)
    return value


history = []
for _ in range(2):
    for a, b in data:
        value = train_step(a, b)
    history += [float(value), float(accuracy.result())]
    accuracy.reset_state()
