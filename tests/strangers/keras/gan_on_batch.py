"""The oldest GAN of Keras's: train_on_batch, and a discriminator that is frozen in the whole."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(310)
noise_size, half = 3, 8

discriminator = keras.Sequential(
    [keras.Input((6,)), layers.Dense(8), layers.LeakyReLU(), layers.Dense(1, "sigmoid")]
)
discriminator.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
generator = keras.Sequential([keras.Input((noise_size,)), layers.Dense(8, "relu"), layers.Dense(6)])
discriminator.trainable = False
seen = keras.Input((noise_size,))
whole = keras.Model(seen, discriminator(generator(seen)))
whole.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")

points = np.random.randn(60, 6).astype("float32") + 1
history = []
for _ in range(7):
    real = points[np.random.randint(0, len(points), half)]
    fake = generator.predict(np.random.normal(size=(half, noise_size)), verbose=0)
    of_real = discriminator.train_on_batch(real, np.ones((half, 1)))
    of_fake = discriminator.train_on_batch(fake, np.zeros((half, 1)))
    noise = np.random.normal(size=(2 * half, noise_size))
    of_whole = whole.train_on_batch(noise, np.ones((2 * half, 1)))
    history += [float(of_real), float(of_fake), float(of_whole)]

models = [generator, discriminator]
