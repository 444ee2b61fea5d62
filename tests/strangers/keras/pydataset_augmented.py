"""A PyDataset that draws its augmentation while batches are made."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(25)


class Jittered(keras.utils.PyDataset):
    def __init__(self, images, labels, size=12):
        super().__init__()
        self.images, self.labels, self.size = images, labels, size

    def __len__(self):
        return (len(self.images) + self.size - 1) // self.size

    def __getitem__(self, i):
        part = slice(i * self.size, (i + 1) * self.size)
        images = self.images[part].copy()
        for image in images:
            if np.random.rand() < 0.5:
                image[:] = image[:, ::-1]
        return images + np.random.normal(0, 0.1, images.shape), self.labels[part]


images = np.random.rand(52, 6, 6, 1).astype("float32")
labels = np.random.randint(0, 2, 52)
model = keras.Sequential(
    [keras.Input((6, 6, 1)), layers.Conv2D(3, 3, activation="relu"), layers.Flatten()]
)
model.add(layers.Dense(2, activation="softmax"))
model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
log = model.fit(Jittered(images, labels), epochs=3, shuffle=False, verbose=0)

history = [*log.history["loss"], *log.history["accuracy"]]
