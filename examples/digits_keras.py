"""Handwritten digits in Keras, on TensorFlow or torch. One word changes how it trains.

python examples/digits_keras.py                  one process
dream run -n 2 examples/digits_keras.py          two replicas, the same result
KERAS_BACKEND=torch python examples/digits_keras.py
"""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import dream

keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(images / 16, labels, random_state=0)

with dream.strategy("mirrored"):  # or "multi_worker_mirrored", "horovod"; "single" in one process
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size=64, epochs=20, verbose=2)
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)

print(f"test accuracy {accuracy:.3f}")
