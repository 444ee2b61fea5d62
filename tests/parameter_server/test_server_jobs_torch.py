"""The laws of `parameter_server` and `local_sgd` in PyTorch: real jobs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import server_jobs_torch as jobs

import dream
from dream import ConfigurationError

ONE = {"OMP_NUM_THREADS": "1"}


def launch(function: Any, *args: Any, n: int) -> list[Any]:
    return dream.launch(function, *args, n=n, framework="torch", timeout=500, env=ONE)


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of any parameter."""
    return max(
        float(np.abs(value - other["parameters"][name]).max())
        for name, value in one["parameters"].items()
    )


@pytest.fixture(scope="module")
def singles() -> dict[str, Any]:
    found = {}
    for optimizer in ("sgd", "adamw"):
        (found[optimizer],) = launch(jobs.explicit, "single", {}, optimizer, n=1)
    (found["untouched"],) = launch(jobs.untouched, "single", {}, "adamw", n=1)
    return found


@pytest.mark.parametrize(
    ("optimizer", "workers", "servers"),
    [("sgd", 2, 1), pytest.param("adamw", 3, 2, marks=pytest.mark.exhaustive)],
)
def test_in_step_the_parameters_are_those_of_one_device(
    singles: dict[str, Any], optimizer: str, workers: int, servers: int
) -> None:
    options = {"workers": workers, "servers": servers, "staleness": 0}
    ranks = launch(jobs.explicit, "parameter_server", options, optimizer, n=workers + servers)
    alone = singles[optimizer]
    assert ranks[workers:] == [None] * servers  # servers never come out of the block
    for rank in ranks[:workers]:
        assert apart(rank, alone) <= 1e-6
        assert rank["accuracy"] == alone["accuracy"]
        for name, value in rank["state"].items():
            np.testing.assert_allclose(value, alone["state"][name], atol=1e-6)
        assert rank["told"].histogram == {0: 20}
        assert rank["told"].lead == 0
    np.testing.assert_allclose(ranks[0]["losses"], alone["losses"][: len(ranks[0]["losses"])],
                               atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("readers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_one_worker_is_one_device_to_the_bit(singles: dict[str, Any], readers: int) -> None:
    """The loop as it stands, clipping and two schedules in it."""
    rank, _ = launch(jobs.untouched, "parameter_server", {}, "adamw", readers, n=2)
    assert apart(rank, singles["untouched"]) == 0.0
    assert rank["steps"] == (20, 5)


def test_several_workers_make_one_update_a_batch(singles: dict[str, Any], tmp_path: Path) -> None:
    """A schedule goes by the job's updates: its last call is at most the others' last pushes
    behind, of which there are four from two batches behind to two ahead."""
    options = {"staleness": 2}
    args = (options, "adamw", 0, str(tmp_path))
    ranks = launch(jobs.untouched, "parameter_server", *args, n=3)[:2]
    told = ranks[0]["told"]
    assert told == ranks[1]["told"]
    assert told.updates == 20
    assert told.lead <= 2
    assert sum(told.by_worker.values()) == 20
    assert apart(ranks[0], ranks[1]) == 0.0
    assert 0.0 < apart(ranks[0], singles["untouched"]) < 0.2
    for by_batch, by_epoch in (rank["steps"] for rank in ranks):
        assert 16 <= by_batch <= 20
        assert by_epoch == 5


@pytest.mark.parametrize("staleness", [None, 2])
def test_every_sample_once_and_no_clock_beyond_the_bound(
    tmp_path: Path, staleness: int | None
) -> None:
    far = 2 if staleness else 8  # of the first pass's 13
    (told, first), (same, second), _ = launch(jobs.uneven, str(tmp_path), staleness, far, n=3)
    read = Counter(
        line for rank in range(2) for line in (tmp_path / f"read{rank}").read_text().split()
    )
    assert read == {str(index): 2 for index in range(jobs.SAMPLES)}
    assert told == same
    assert told.updates == 26
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
    assert far - 1 <= told.lead <= (staleness or 26)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("loop", r"staleness=0 workers share each batch.*train_step"),
        ("communicator", r"run asynchronously"),
        pytest.param("sampler", r"generator of one's own", marks=pytest.mark.exhaustive),
        pytest.param("group", "Servers run no line", marks=pytest.mark.exhaustive),
        pytest.param("half", r"float16.*float32", marks=pytest.mark.exhaustive),
        pytest.param("two", r"one optimizer. Received: 2", marks=pytest.mark.exhaustive),
    ],
)
def test_what_cannot_be_is_refused(what: str, words: str) -> None:
    said = launch(jobs.refused, what, n=3)
    for message in said[:2]:
        assert message
        import re

        assert re.search(words, message)


def test_a_wrong_number_of_ranks_is_named() -> None:
    with pytest.raises(dream.WorkerFailed, match=r"2 workers and 1 server are 3 ranks.*-n 3"):
        launch(jobs.explicit, "parameter_server", {"workers": 2}, "sgd", n=2)


def test_a_synchronous_strategy_has_no_staleness() -> None:
    with pytest.raises(dream.Unsupported, match="no staleness"):
        dream.strategy("single", framework="torch").staleness()
    with pytest.raises(ConfigurationError, match="staleness"):
        dream.strategy("parameter_server", staleness=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_digits_are_learnt_as_well_as_on_one_device(seed: int) -> None:
    (alone,) = launch(jobs.digits, "single", {}, seed, n=1)
    first, second, _ = launch(jobs.digits, "parameter_server", {"staleness": 8}, seed, n=3)
    assert first == second
    assert first >= alone - 0.01


@pytest.mark.parametrize(
    ("optimizer", "loop"),
    [("sgd", True), pytest.param("adamw", False, marks=pytest.mark.exhaustive)],
)
def test_an_average_at_every_step_is_what_mirrored_does(optimizer: str, loop: bool) -> None:
    local = launch(jobs.averaged, "local_sgd", {"every": 1}, optimizer, loop, n=2)
    (alone,) = launch(jobs.averaged, "single", {}, optimizer, loop, n=1)
    assert apart(local[0], local[1]) == 0.0
    assert apart(local[0], alone) <= 1e-6


def test_replicas_are_alike_after_each_pass_whatever_the_interval() -> None:
    local = launch(jobs.averaged, "local_sgd", {"every": 3}, "sgd", True, n=2)
    (alone,) = launch(jobs.averaged, "single", {}, "sgd", True, n=1)
    assert apart(local[0], local[1]) == 0.0
    assert 1e-5 < apart(local[0], alone) < 1.0
