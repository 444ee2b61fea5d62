"""A PyDataset read by two workers, with cutmix of a batch's rows by NumPy, and weights."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(348)

images = np.random.rand(45, 8, 8, 1).astype("float32")
labels = np.eye(2)[np.random.randint(0, 2, 45)].astype("float32")


class Cut(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        rng = np.random.default_rng([i, 7])
        x, y = images[i * 10 : i * 10 + 10].copy(), labels[i * 10 : i * 10 + 10].copy()
        other = rng.permutation(len(x))
        x[:, :4] = x[other, :4]
        return x, 0.5 * y + 0.5 * y[other], rng.uniform(0.5, 1, len(x)).astype("float32")


model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.SeparableConv2D(4, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(2, "softmax"),
    ]
)
model.compile(keras.optimizers.SGD(0.2), "categorical_crossentropy", weighted_metrics=["accuracy"])
log = model.fit(Cut(workers=2, max_queue_size=3), epochs=3, shuffle=False, verbose=0).history
history = [each for name in sorted(log) for each in log[name]]
history += [float(v) for v in model.predict(Cut(), verbose=0).sum(0)]
