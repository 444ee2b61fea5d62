"""Three tasks, most labels missing: weights of zero by output, and weighted metrics."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(304)

x = np.random.randn(62, 6).astype("float32")
ys = {"a": x[:, :1] * 2, "b": (x[:, 1:2] > 0).astype("float32"), "c": np.random.randint(0, 3, 62)}
ws = {k: (np.random.rand(62) < 0.5).astype("float32") for k in ys}
ws["b"] *= np.random.uniform(0, 3, 62).astype("float32")
seen = keras.Input((6,))
h = layers.Dense(9, "relu")(seen)
outs = {
    "a": layers.Dense(1, name="a")(h),
    "b": layers.Dense(1, "sigmoid", name="b")(h),
    "c": layers.Dense(3, "softmax", name="c")(h),
}
model = keras.Model(seen, outs)
model.compile(
    keras.optimizers.SGD(0.1),
    loss={"a": "huber", "b": "binary_crossentropy", "c": "sparse_categorical_crossentropy"},
    loss_weights={"a": 0.3, "b": 2.0, "c": 1.0},
    metrics={"c": ["accuracy"]},
    weighted_metrics={
        "a": ["mae"],
        "b": ["AUC"],
        "c": [keras.metrics.SparseCategoricalCrossentropy(name="nll")],
    },
)
log = model.fit(
    x,
    ys,
    sample_weight=ws,
    batch_size=16,
    epochs=3,
    validation_data=(
        x[:21],
        {k: v[:21] for k, v in ys.items()},
        {k: v[:21] for k, v in ws.items()},
    ),
    verbose=0,
).history
history = [each for name in sorted(log) for each in log[name]]
