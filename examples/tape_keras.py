"""A loop of your own around TensorFlow's GradientTape, in the block. Untouched it is exact, and
each rank computes whole batches. To share the work it needs two things that `fit` does by itself:
`strategy.share` takes this rank's rows of a batch, and `strategy.weigh` says how many samples the
loss is a mean over, since a tape cannot tell. One without the other is refused.

python examples/tape_keras.py                    one process
dream run -n 2 examples/tape_keras.py            the same figures
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import dream

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
x, y, x_test, y_test = images[:1437], labels[:1437], images[1437:], labels[1437:]

with dream.strategy("mirrored") as strategy:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
    model.build((None, 64))
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def step(rows: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = strategy.weigh(crossentropy(right, model(rows, training=True)), len(rows))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(5):
        order = np.random.default_rng(epoch).permutation(len(x))  # alike on every rank
        for start in range(0, len(x), 64):
            batch = order[start : start + 64]
            step(*strategy.share(tf.constant(x[batch]), tf.constant(y[batch])))
        found = model(x_test, training=False)
        if strategy.topology.rank == 0:
            right = np.mean(np.argmax(found, axis=1) == y_test)
            print(f"epoch {epoch + 1}: test loss {float(crossentropy(y_test, found)):.4f}, "
                  f"test accuracy {right:.4f}")  # fmt: skip
