"""Several inputs by name, two outputs with losses of their own, weighed."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(12)
n = 101

features = {
    "age": np.random.normal(40, 9, (n, 1)).astype("float32"),
    "income": np.random.lognormal(1, 0.4, (n, 1)).astype("float32"),
    "town": np.random.randint(0, 6, (n, 1)),
}
bought = (features["income"] + features["town"] > 5).astype("float32")
spent = features["income"] * 0.5 + np.random.normal(0, 0.1, (n, 1)).astype("float32")

scale = layers.Normalization()
scale.adapt(features["age"])
inputs = {
    "age": keras.Input((1,), name="age"),
    "income": keras.Input((1,), name="income"),
    "town": keras.Input((1,), name="town", dtype="int32"),
}
town = layers.Flatten()(layers.Embedding(6, 3)(inputs["town"]))
joined = layers.Concatenate()([scale(inputs["age"]), inputs["income"], town])
hidden = layers.Dropout(0.2)(layers.Dense(10, activation="relu")(joined))
outputs = {
    "bought": layers.Dense(1, activation="sigmoid", name="bought")(hidden),
    "spent": layers.Dense(1, name="spent")(hidden),
}
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.SGD(0.02),
    loss={"bought": "binary_crossentropy", "spent": "mae"},
    loss_weights={"bought": 1.0, "spent": 0.3},
    metrics={"bought": ["AUC", "accuracy"], "spent": ["mse"]},
)
targets = {"bought": bought, "spent": spent}
log = model.fit(features, targets, batch_size=24, epochs=3, verbose=0)
scores = model.evaluate(features, targets, verbose=0, return_dict=True)

history = [value for name in sorted(log.history) for value in log.history[name]]
history += [scores[name] for name in sorted(scores)]
