"""Models are pickled, copied deeply, written as JSON, and trained on."""

import copy
import pickle

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(363)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(9, "tanh"), layers.BatchNormalization(), layers.Dense(1)]
)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
history = list(model.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"])
again = pickle.loads(pickle.dumps(model))
history += again.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
third = copy.deepcopy(model)
history += third.fit(x, y, batch_size=16, epochs=1, verbose=0).history["mae"]
fourth = keras.models.model_from_json(model.to_json())
fourth.set_weights(model.get_weights())
fourth.compile(
    **{
        "optimizer": keras.optimizers.get(keras.optimizers.serialize(model.optimizer)),
        "loss": "mse",
    }
)
history += fourth.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
models = {"a": model, "b": again, "c": third, "d": fourth}
