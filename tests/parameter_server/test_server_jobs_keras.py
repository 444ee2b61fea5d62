"""The laws of `parameter_server` in Keras on TensorFlow: real jobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import server_jobs_keras as jobs
from launch_scripts import keras_on

import dream

pytestmark = pytest.mark.slow


def launch(function: Any, *args: Any, n: int, on: str = "tensorflow") -> list[Any]:
    return dream.launch(function, *args, n=n, framework=on, timeout=500, env=keras_on(on))


def apart(one: dict[str, Any], other: dict[str, Any], what: str = "parameters") -> float:
    """The largest difference of any parameter."""
    assert one[what].keys() == other[what].keys()
    return max(float(np.abs(one[what][n] - other[what][n]).max()) for n in one[what])


@pytest.fixture(scope="module")
def singles() -> dict[Any, Any]:
    """What one device makes of each way to train, made when it is asked for."""

    class Made(dict[Any, Any]):
        def __missing__(self, key: Any) -> Any:
            job, *args = key
            on = args.pop() if args[-1:] == ["torch"] else "tensorflow"
            (self[key],) = launch(getattr(jobs, job), "single", {}, *args, n=1, on=on)
            return self[key]

    return Made()


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.exhaustive)])
def test_one_worker_is_one_device_to_the_bit(singles: dict[Any, Any], optimizer: str) -> None:
    rank, nothing = launch(jobs.fitted, "parameter_server", {}, optimizer, n=2)
    alone = singles["fitted", optimizer]
    assert nothing is None  # a server never comes out of the block
    assert apart(rank, alone) == 0.0
    assert apart(rank, alone, "state") == 0.0
    assert rank["history"] == alone["history"]
    assert rank["figures"] == alone["figures"]


@pytest.mark.parametrize(
    ("optimizer", "workers", "servers"),
    [("sgd", 2, 1), pytest.param("adamw", 3, 2, marks=pytest.mark.exhaustive)],
)
def test_in_step_fit_is_that_of_one_device(
    singles: dict[Any, Any], optimizer: str, workers: int, servers: int
) -> None:
    options = {"workers": workers, "servers": servers, "staleness": 0}
    norm = servers == 1
    ranks = launch(jobs.fitted, "parameter_server", options, optimizer, norm, n=workers + servers)
    alone = singles["fitted", optimizer, norm]
    for rank in ranks[:workers]:
        assert apart(rank, alone) <= 1e-6
        assert apart(rank, alone, "state") <= 1e-6
        assert rank["told"].histogram == {0: 20}
        assert rank["history"]["val_loss"] == pytest.approx(alone["history"]["val_loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("workers", "servers", "staleness"),
    [(2, 1, 0), pytest.param(1, 2, 8, marks=pytest.mark.exhaustive)],
)
def test_the_explicit_step_is_that_of_one_device(
    singles: dict[Any, Any], workers: int, servers: int, staleness: int
) -> None:
    options = {"workers": workers, "servers": servers, "staleness": staleness}
    args = ("adamw", servers == 1)
    n = workers + servers
    ranks = launch(jobs.explicit, "parameter_server", options, *args, n=n)
    alone = singles["explicit", *args]
    for rank in ranks[:workers]:
        assert apart(rank, alone) <= (0.0 if workers == 1 else 1e-6)
        assert rank["right"] == alone["right"]
    np.testing.assert_allclose(ranks[0]["losses"], alone["losses"][: len(ranks[0]["losses"])],
                               atol=1e-5)  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "options", "n"),
    [
        ("parameter_server", {"staleness": 0}, 3),
        pytest.param("local_sgd", {"every": 1}, 2, marks=pytest.mark.exhaustive),
    ],
)
def test_a_pydataset_is_read_pass_by_pass(
    singles: dict[Any, Any], name: str, options: dict[str, Any], n: int
) -> None:
    ranks = launch(jobs.tables, name, options, n=n)[:2]
    for rank in ranks:
        assert apart(rank, singles["tables",]) <= 1e-6
        assert rank["passes"] == (2, 2)  # begun and ended; Keras itself ends one more than it began


@pytest.mark.parametrize("staleness", [None, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_every_batch_is_one_update_and_no_clock_is_beyond_the_bound(
    tmp_path: Path, staleness: int | None
) -> None:
    far = 2 if staleness else 8  # of the first pass's 13
    first, second, _ = launch(jobs.uneven, str(tmp_path), staleness, far, n=3)
    told, parameters, counted = first
    assert told.updates == counted == second[2] == 26  # Keras's own count, too
    assert told == second[0]
    assert apart({"parameters": parameters}, {"parameters": second[1]}) == 0.0
    assert far - 1 <= told.lead <= (staleness or 26)


REFUSED = {
    "loop": "outside a dream step",
    "batch": "train_on_batch",
    "steps": "steps_per_epoch=3",
    "communicator": "run asynchronously",
    "ema": "use_ema=True",
    "loaded": "set or loaded after",
}


def test_what_cannot_be_is_refused() -> None:
    for said in launch(jobs.refused, n=3)[:2]:
        for what, words in REFUSED.items():
            assert words in said[what], what


@pytest.mark.slow
def test_workers_that_shuffle_apart_are_told() -> None:
    """One of them; the first to ask is right."""
    said = launch(jobs.shuffled, n=3)[:2]
    (message,) = filter(None, said)
    assert re.search("data differ.*the same seed", message)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_digits_are_learnt_as_well_as_on_one_device(seed: int) -> None:
    """In torch they always are: how late a gradient comes is no framework's own."""
    (alone,) = launch(jobs.digits, "single", {}, seed, n=1)
    options = {"staleness": 8}
    first, _, _ = launch(jobs.digits, "parameter_server", options, seed, n=3)
    assert first >= alone - 0.01


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.exhaustive)])
def test_an_average_at_every_step_is_what_mirrored_does(
    singles: dict[Any, Any], optimizer: str
) -> None:
    local = launch(jobs.fitted, "local_sgd", {"every": 1}, optimizer, n=2)
    alone = singles["fitted", optimizer]
    assert apart(local[0], local[1]) == 0.0
    assert apart(local[0], alone) <= 1e-6
    assert apart(local[0], alone, "state") <= 1e-6
    for name, values in alone["history"].items():
        assert local[1]["history"][name] == pytest.approx(values, abs=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [1, 3])
def test_keras_on_torch_averages_too(singles: dict[Any, Any], every: int) -> None:
    """Always in tests/adapters/keras, where ranks that have imported both are there."""
    local = launch(jobs.fitted, "local_sgd", {"every": every}, "adamw", n=2, on="torch")
    alone = singles["fitted", "adamw", "torch"]
    assert apart(local[0], local[1]) == 0.0
    assert (apart(local[0], alone) <= 1e-6) == (every == 1)


@pytest.mark.exhaustive
def test_the_explicit_step_averages_too(singles: dict[Any, Any]) -> None:
    args = ("sgd", True)
    local = launch(jobs.explicit, "local_sgd", {"every": 1}, *args, n=3)
    alone = singles["explicit", *args]
    assert apart(local[0], local[2]) == 0.0
    assert apart(local[0], alone) <= 1e-6
    assert local[0]["right"] == local[1]["right"] == alone["right"]


@pytest.mark.exhaustive
def test_replicas_are_alike_after_each_pass_whatever_the_interval(
    singles: dict[Any, Any],
) -> None:
    local = launch(jobs.fitted, "local_sgd", {"every": 3}, "sgd", n=2)
    assert apart(local[0], local[1]) == 0.0
    assert apart(local[0], local[1], "state") == 0.0
    assert local[0]["history"] == local[1]["history"]
    assert 1e-5 < apart(local[0], singles["fitted", "sgd"]) < 1.0
