"""Handwritten digits in Keras, parameters and optimizer state in shards: each rank holds a part.

dream run -n 2 examples/sharded_keras.py         two ranks, the same result
python examples/sharded_keras.py                 one process, one shard
"""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import dream

keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(images / 16, labels, random_state=0)

with dream.strategy("sharded"):  # zero=3; zero=1 shards the optimizer's state alone
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size=64, epochs=10, verbose=2)
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)

print(f"test accuracy {accuracy:.3f}")
