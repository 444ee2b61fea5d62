"""TensorFlow's own parameter servers: real jobs of a chief, workers and servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import coordinated_jobs as jobs
import numpy as np
import pytest
from launch_scripts import keras_on

import dream

pytestmark = pytest.mark.slow


def launch(function: Any, *args: Any, n: int) -> list[Any]:
    return dream.launch(
        function, *args, n=n, framework="tensorflow", timeout=500, env=keras_on("tensorflow")
    )


@pytest.mark.parametrize(
    ("optimizer", "cut"),
    [("SGD", "fixed:2"), pytest.param("AdamW", None, marks=pytest.mark.exhaustive),
     pytest.param("AdamW", "min_size:64", marks=pytest.mark.exhaustive)],
)  # fmt: skip
def test_one_worker_whose_steps_are_waited_for_is_one_device(
    optimizer: str, cut: str | None, tmp_path: Path
) -> None:
    """Whether its variables are whole, or cut over two servers; and Keras can read them."""
    file = str(tmp_path / "w.weights.h5")
    options = {"engine": "tensorflow", "workers": 1, "servers": 2, "partitioner": cut}
    chief, *others = launch(jobs.stepped, options, optimizer, file, n=4)
    ((alone, read),) = launch(jobs.on_one_device, optimizer, file, n=1)
    assert others == [None] * 3  # they never come out of the block
    assert chief["role"] == "chief"
    assert chief["shards"] == ([1] * 6 if cut is None else [2, 1, 1, 1, 2, 1])
    assert chief["count"] == alone["count"] == 21
    assert chief["losses"] == pytest.approx(alone["losses"], abs=1e-6)
    assert chief["figures"] == alone["figures"]
    assert chief["state"].keys() == alone["state"].keys()
    for name, value in alone["state"].items():
        assert np.abs(chief["state"][name] - value).max() <= 1e-6, name
    held = [v for name, v in chief["state"].items() if "seed" not in name]
    assert sorted(v.tobytes() for v in read) == sorted(v.tobytes() for v in held)
    assert "dream's own servers train by fit" in chief["refused"]["fit"]
    assert "strategy.schedule(model" in chief["refused"]["predict"]


def test_workers_that_do_not_wait_take_what_is_handed_out() -> None:
    """Each update is counted, whoever makes it; an error of a function is told as it is."""
    chief, *others = launch(jobs.handed_out, n=4)
    assert others == [None] * 3
    assert chief["count"] == jobs.UPDATES
    assert set(chief["last"]) == {"loss", "samples"}
    assert chief["last"]["loss"] < chief["first"]["loss"] / 2
    assert chief["outputs"] == (jobs.SAMPLES, 2)
    assert "an error of the function" in chief["own error"]
    assert "SGD that was made outside it" in chief["outside"]
    assert "gradient_accumulation_steps=2" in chief["accumulating"]
    assert "'parameter_server' run asynchronously" in chief["communicator"]


def test_what_looks_at_a_whole_variable_is_refused_where_it_is_cut() -> None:
    refused = launch(jobs.cut_where_it_cannot_be, n=4)[0]
    assert "Received: Adafactor" in refused["optimizer"]
    assert "Received: clipnorm" in refused["clipnorm"]
    assert "Use strategy.train_step" in refused["own"]
