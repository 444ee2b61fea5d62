"""Two outputs by name: losses, weights, metrics and sample weights of each."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(311)

text, extra = keras.Input((9,), name="text"), keras.Input((3,), name="extra")
h = layers.GRU(5)(layers.Embedding(15, 4, mask_zero=True)(text))
h = layers.concatenate([h, extra])
model = keras.Model(
    {"text": text, "extra": extra},
    {
        "kind": layers.Dense(4, name="kind")(h),
        "urgency": layers.Dense(1, "sigmoid", name="urgency")(h),
    },
)
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9),
    loss={
        "kind": keras.losses.CategoricalCrossentropy(from_logits=True),
        "urgency": keras.losses.BinaryCrossentropy(),
    },
    loss_weights={"kind": 0.2, "urgency": 1.0},
    metrics={"kind": ["accuracy"], "urgency": ["mae"]},
)
words = np.random.randint(1, 15, (74, 9))
words[np.arange(9) >= np.random.randint(2, 10, 74)[:, None]] = 0
kinds = np.eye(4)[np.random.randint(0, 4, 74)].astype("float32")
urgency = np.random.randint(0, 2, (74, 1)).astype("float32")
log = model.fit(
    {"text": words, "extra": np.random.rand(74, 3).astype("float32")},
    {"kind": kinds, "urgency": urgency},
    sample_weight={"kind": np.random.rand(74), "urgency": np.ones(74)},
    batch_size=16,
    epochs=2,
    verbose=0,
)

history = [value for name in sorted(log.history) for value in log.history[name]]
