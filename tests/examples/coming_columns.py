"""A column of docs/coming.md, run: prints what each row ends with. Even batches, on which
tf.distribute is exact, too."""

from __future__ import annotations

import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Weights = list[list[float]]
BATCH, ROWS = 16, 64
MSE = keras.losses.MeanSquaredError


def made() -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, "tanh", name="up"), keras.layers.Dense(4)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), MSE())
    return model


def rows() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((ROWS, 8), dtype="float32")
    return x, np.tanh(x[:, :4])


def weights(model: Any) -> Weights:
    return [np.asarray(each).ravel().tolist() for each in model.get_weights()]


def fitted(model: Any) -> Weights:
    model.fit(*rows(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return weights(model)


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(rows()).batch(BATCH)


def plain() -> dict[str, Any]:
    return {"fit": fitted(made())}


def tf_distribute() -> dict[str, Any]:
    two_devices()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        found: dict[str, Any] = {"fit": fitted(made())}
        model = made()
        model.optimizer.build(model.trainable_variables)
        each = MSE(reduction="sum")

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = each(y, model(x, training=True)) / BATCH  # by hand: the global batch
        trained = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return loss

    @tf.function
    def run(x: Any, y: Any) -> Any:
        return strategy.reduce("sum", strategy.run(step, (x, y)), axis=None)

    for _ in range(2):
        for x, y in strategy.experimental_distribute_dataset(batches()):
            found["loss"] = float(run(x, y))
    found["loop"] = weights(model)
    found["replicas"] = strategy.num_replicas_in_sync
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        found["one device"] = fitted(made())
    tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    central = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"])
    with central.scope():
        found["central"] = "CPU:0" in tf.Variable(1.0).device
    return found


def by_dream() -> dict[str, Any]:
    import dream

    with dream.strategy("mirrored", devices=2):
        found: dict[str, Any] = {"fit": fitted(made())}
    with dream.strategy("mirrored", devices=2) as strategy:
        model = made()
        step = strategy.train_step(model, MSE(), model.optimizer)
        data = strategy.prepare(batches())
        for _ in range(2):
            for x, y in data:
                found["loss"] = float(step(x, y))
        found["loop"] = weights(model)
        current = dream.current()
        assert current is not None
        found["replicas"] = current.topology.num_replicas
    with dream.strategy("single"):
        found["one device"] = fitted(made())
    return found


def keras_distribution() -> dict[str, Any]:
    two_devices()
    mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices=["cpu:0", "cpu:1"])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts["up.*kernel"] = (None, "model")
    found: dict[str, Any] = {}
    for name, distribution in {
        "data": keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]),
        "model": keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"),
    }.items():
        with distribution.scope():
            model = made()
            found[name] = fitted(model)
        kernel = model.layers[0].kernel.value
        found[f"{name} held"] = [type(kernel).__name__, *kernel.shape, kernel.device[-5:]]
    return found


def dream_distribution() -> dict[str, Any]:
    import dream

    found: dict[str, Any] = {}
    with dream.strategy("mirrored", devices=2):
        found["data"] = fitted(made())
    return found


def dream_model_parallel() -> dict[str, Any]:
    import dream

    plan = {"up": "column"}
    with dream.strategy("model_parallel", split="tensor", plan=plan, devices=2) as strategy:
        model = made()
        fitted(model)
        state = strategy.full_state(model)
        return {"model": [np.asarray(each).ravel().tolist() for each in state.values()]}


def two_devices() -> None:
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
