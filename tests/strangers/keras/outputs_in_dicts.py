"""Outputs, targets, losses, weights and metrics by name."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(118)

x = np.random.randn(62, 6).astype("float32")
y = np.tanh(x @ np.random.randn(6, 1)).astype("float32")

seen = keras.Input((6,), name="seen")
hidden = layers.Dense(9, "relu")(seen)
model = keras.Model(
    {"seen": seen},
    {
        "value": layers.Dense(1, name="value")(hidden),
        "sign": layers.Dense(1, "sigmoid", name="sign")(hidden),
        "kind": layers.Dense(3, name="kind")(hidden),
    },
)
targets = {"value": y, "sign": (y > 0).astype("float32"), "kind": np.random.randint(0, 3, 62)}
model.compile(
    keras.optimizers.SGD(0.1),
    loss={
        "value": keras.losses.MeanSquaredError(reduction="sum"),
        "sign": "binary_crossentropy",
        "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"value": 0.02, "sign": 1.0, "kind": 0.5},
    metrics={"sign": ["accuracy", keras.metrics.AUC()], "kind": "accuracy"},
)
weights = {
    "value": np.random.uniform(0, 2, 62),
    "sign": np.random.uniform(0, 2, 62),
    "kind": np.random.uniform(0, 1, 62),
}
log = model.fit(
    {"seen": x},
    targets,
    sample_weight=weights,
    batch_size=16,
    epochs=3,
    validation_data=({"seen": x[:20]}, {k: v[:20] for k, v in targets.items()}),
    verbose=0,
).history
history = [each for name in sorted(log) if "auc" not in name for each in log[name]]
