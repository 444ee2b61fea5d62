"""Replicas that come together in outer steps, held against the same by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import outer_steps
import pytest
from launch_scripts import keras_on

import dream


def by_servers() -> None:
    import keras

    with dream.strategy("parameter_server"):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        model.fit(*outer_steps.data(), verbose=0)


def test_servers_refuse_keras_on_torch() -> None:
    with pytest.raises(dream.WorkerFailed, match="Keras models do not train on torch"):
        dream.launch(by_servers, n=2, framework="torch", timeout=300, env=keras_on("torch"))


def run(**options: Any) -> list[Any]:
    import keras

    x, y = outer_steps.data()
    with dream.strategy("local_sgd", **options):
        ones = keras.initializers.Constant(0.1)
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(2, kernel_initializer=ones, bias_initializer=ones),
            ]
        )
        model.compile(keras.optimizers.SGD(outer_steps.RATE, outer_steps.MOMENTUM), "mse")
        model.fit(
            x, y, batch_size=outer_steps.BATCH, epochs=outer_steps.EPOCHS, shuffle=False, verbose=0
        )
    return [np.asarray(w) for w in model.get_weights()]


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
@pytest.mark.parametrize(
    "case", [(3, 0.7, 0.9, 1), pytest.param((4, 0.5, 0.0, 2), marks=pytest.mark.exhaustive)]
)
def test_outer_steps_are_those_of_the_paper(backend: str, case: tuple[Any, ...]) -> None:
    names = ("every", "outer_lr", "outer_momentum", "fragments")
    ranks = dream.launch(
        run,
        n=2,
        framework=backend,
        timeout=300,
        env=keras_on(backend),
        **dict(zip(names, case, strict=True)),
    )
    for own in ranks:
        for mine, other, expected in zip(own, ranks[0], outer_steps.by_hand(*case), strict=True):
            np.testing.assert_array_equal(mine, other)
            np.testing.assert_allclose(mine, expected, atol=1e-6)
