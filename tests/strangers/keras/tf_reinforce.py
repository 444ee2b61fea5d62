"""A policy gradient on a toy game: episodes of any length, one update each."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(82)

policy = keras.Sequential([keras.Input((2,)), layers.Dense(6, "tanh"), layers.Dense(2, "softmax")])
optimizer = keras.optimizers.SGD(0.05)
history = []
for _ in range(5):
    place, gains = np.random.randn(2).astype("float32"), []
    with tf.GradientTape() as tape:
        chances = []
        for _ in range(int(np.random.randint(3, 8))):
            odds = policy(place[None])
            action = np.random.choice(2, p=np.squeeze(odds) / np.sum(odds))
            chances.append(tf.math.log(odds[0, action]))
            place = place * 0.9 + (0.1 if action else -0.1)
            gains.append(-float(np.abs(place).sum()))
        returns = np.cumsum(gains[::-1])[::-1]
        loss = -tf.reduce_sum(tf.stack(chances) * returns.astype("float32"))
    gradients = tape.gradient(loss, policy.trainable_variables)
    optimizer.apply_gradients(zip(gradients, policy.trainable_variables, strict=True))
    history += [float(loss), len(gains)]
model = policy
