"""Digits on TensorFlow's own parameter servers. Rank 0 is the chief: it alone runs what is in the
block, and hands each step out to whichever worker is free.

dream run -n 4 examples/parameter_server_tensorflow.py       a chief, two workers, one server
dream run -n 5 --strategy parameter_server:engine=tensorflow,servers=2,partitioner=min_size:2048 \
    examples/parameter_server_tensorflow.py                  kernels cut over two servers
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import dream

EPOCHS = 10

x, y = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split((x / 16).astype("float32"), y, random_state=0)
keras.utils.set_random_seed(0)


def right(prediction, target):
    return tf.cast(tf.argmax(prediction, 1) == target, tf.float32)


with dream.strategy("parameter_server", engine="tensorflow") as strategy:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam(0.002)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = strategy.train_step(model, loss, optimizer)

    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=0).batch(64)
    for epoch in range(EPOCHS):
        values = [step(*batch) for batch in batches]  # handed out: nothing is waited for here
        strategy.join()
        losses = strategy.fetch(values)
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")

    # any function may be handed out, a model too
    logits = strategy.fetch(strategy.schedule(model, args=(x_test,)))
    test = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(64)
    told = strategy.evaluate(model, test, {"accuracy": right})

assert ((logits.argmax(1) == y_test).mean() - told["accuracy"]) ** 2 < 1e-12
print(f"{int(optimizer.iterations)} updates by {strategy.topology.num_replicas} workers")
print(f"test accuracy {told['accuracy']:.3f}")
