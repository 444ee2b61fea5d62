"""Models within models: bases with a compile of their own, frozen, released, cut and rewired."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(353)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

base = keras.Sequential(
    [
        keras.Input((6,)),
        layers.Dense(8, "relu", name="one"),
        layers.BatchNormalization(),
        layers.Dense(5, "relu", name="two"),
    ],
    name="base",
)
auto = keras.Model(base.inputs, layers.Dense(6)(base.outputs[0]))
auto.compile(keras.optimizers.SGD(0.05), "mse")
history = list(auto.fit(x, x, batch_size=16, epochs=2, verbose=0).history["loss"])
base.trainable = False
twin = keras.Sequential.from_config({**base.get_config(), "name": "twin"})
seen = keras.Input((6,))
model = keras.Model(
    seen, layers.Dense(1)(layers.Concatenate()([base(seen, training=False), twin(seen)]))
)
model.compile(keras.optimizers.SGD(0.05), "mse")
history += model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
base.trainable = True
base.get_layer("one").trainable = False
model.compile(keras.optimizers.SGD(0.01), "mse")
history += model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
cut = keras.Model(base.inputs, base.get_layer("one").output)
history += [float(np.asarray(cut.predict(x, batch_size=25, verbose=0)).sum())]
models = {"model": model, "auto": auto}
