"""Several processes over TensorFlow's collectives and over the ring, held against one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tf_launching import call

pytestmark = pytest.mark.slow

THREE = pytest.mark.exhaustive
RANKS = (2, pytest.param(3, marks=THREE))
REDUCTIONS = ("grpc", "horovod")
TRAINING = ("momentum", "adamw", "clipped", "accumulated", "counted", "embedding")
FURTHER = [pytest.param(3, name, marks=THREE) for name in REDUCTIONS]
cells = pytest.mark.parametrize(("ranks", "reduction"), [(2, n) for n in REDUCTIONS] + FURTHER)
of_any_wire = pytest.mark.parametrize(
    ("ranks", "reduction"), [(2, "grpc"), pytest.param(2, "horovod", marks=THREE), *FURTHER]
)
"""For what is no matter of what adds up."""


def results(ranks: int, *, full: bool = False) -> list[dict[str, Any]]:
    return call("tf_ranks", "run", full or ranks > 2, n=ranks)


def one_device() -> dict[str, Any]:
    return call("tf_alone", "one_device", n=1)[0]


def found(ranks: int, reduction: str, what: str, *, full: bool = False) -> list[Any]:
    """Of every rank, in rank order. full: where horovod is asked for more than for sums."""
    return [rank[reduction][what] for rank in results(ranks, full=full)]


@cells
def test_a_list_travels_together(ranks: int, reduction: str) -> None:
    total = sum(range(ranks))
    wanted = [[float(total + ranks)], total, np.full((2, 1), total), np.zeros((0, 3)), total]
    for values in found(ranks, reduction, "list"):
        for value, want in zip(values, wanted, strict=True):
            np.testing.assert_array_equal(value, want)
    assert found(ranks, reduction, "kinds")[0] == [
        "EagerTensor", "float32", "ndarray", "EagerTensor", "EagerTensor",
    ]  # fmt: skip
    assert [x.tolist() for x in found(ranks, reduction, "kept")] == [
        [1.0 + r] for r in range(ranks)
    ]


@cells
def test_gradients_flow_back_through_what_is_gathered(ranks: int, reduction: str) -> None:
    told = sum(range(1, ranks + 1))
    for rank, values in enumerate(found(ranks, reduction, "pulled")):
        for value in values:
            wanted = np.full((rank + 1, 2), told * 3.0 * (rank + 2) ** 2)
            np.testing.assert_allclose(value, wanted)


@cells
def test_inside_functions(ranks: int, reduction: str) -> None:
    mean = (ranks - 1) / 2
    for rank, values in enumerate(found(ranks, reduction, "retraced")):
        for value, size in zip(values, (2, 3, 4, 2), strict=True):
            np.testing.assert_allclose(value, np.full(size, mean), err_msg=str(rank))
    for nested in found(ranks, reduction, "nested"):
        np.testing.assert_allclose(nested, ranks - 1 + 2 * mean)
    for loop in found(ranks, reduction, "loop"):
        np.testing.assert_allclose(loop, mean + 5, rtol=1e-6)


def _in_full(reduction: str, case: str) -> bool:
    """Whether a training is left to `make exhaustive`."""
    return case == "adamw" or (reduction == "horovod" and case != "momentum")


@pytest.mark.parametrize(
    ("case", "ranks", "reduction"),
    [
        pytest.param(
            case, ranks, name,
            marks=THREE if ranks > 2 or _in_full(name, case) else (),
        )
        for case in TRAINING
        for ranks in (2, 3)
        for name in REDUCTIONS
    ],
)  # fmt: skip
def test_training_is_that_of_one_device(case: str, ranks: int, reduction: str) -> None:
    weights, losses = one_device()["training"][case]
    every = found(ranks, reduction, "training", full=_in_full(reduction, case))
    for rank in every:
        assert not isinstance(rank[case], str), rank[case]
        for ours, theirs in zip(rank[case][0], weights, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(rank[case][1], losses, rtol=1e-5)
        for ours, first in zip(rank[case][0], every[0][case][0], strict=True):
            np.testing.assert_array_equal(ours, first)


@of_any_wire
def test_evaluation_is_that_of_one_device(ranks: int, reduction: str) -> None:
    for rank in found(ranks, reduction, "evaluated", full=reduction == "horovod"):
        for kind, figures in one_device()["evaluated"].items():
            assert rank[kind] == pytest.approx(figures, abs=1e-6)


@of_any_wire
def test_weighed_losses_of_a_loop_by_hand(ranks: int, reduction: str) -> None:
    for rank in found(ranks, reduction, "weighed", full=reduction == "horovod"):
        assert not isinstance(rank, str), rank
        for ours, theirs in zip(rank, one_device()["weighed"][ranks], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@of_any_wire
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("unweighed", "ConfigurationError: These gradients are one replica's own"),
        ("other data", "Desynchronized: The ranks read different data"),
        ("other model", "Desynchronized: The ranks built different models"),
        ("sum loss", "Unsupported: This loss is not a mean over samples"),
        ("single numbers", "ConfigurationError: The dataset yields single numbers"),
        ("arrays", "Unsupported: prepare takes Keras models"),
        ("text", "Unsupported: This dtype cannot be reduced"),
        ("python list", "Unsupported: A communicator takes"),
        ("root", "ConfigurationError: No such rank"),
    ],
)
def test_refusals(fault: str, said: str, ranks: int, reduction: str) -> None:
    for message in found(ranks, reduction, fault, full=reduction == "horovod"):
        assert str(message).startswith(said), message


@pytest.mark.parametrize("ranks", RANKS)
def test_blocks_follow_one_another(ranks: int) -> None:
    for rank in results(ranks):
        np.testing.assert_array_equal(rank["again"], [ranks, ranks])


def test_ranks_that_started_tensorflow_before_the_block() -> None:
    for cluster, devices in call("tf_alone", "cold_ranks", n=2):
        assert cluster.startswith("ConfigurationError: TensorFlow has already started")
        assert "--strategy" in cluster
        assert devices.startswith("Unsupported: Across processes each rank of this strategy")


@pytest.mark.parametrize("asked", ["mirrored", "multi_worker_mirrored:devices=2,reduction=grpc"])
def test_strategy_on_the_command_line_sets_the_cluster_up_early(asked: str) -> None:
    for name, total in call("tf_alone", "early_ranks", n=2, strategy=asked):
        assert name == asked.partition(":")[0]
        assert total.tolist() == [2.0]


def test_ranks_of_several_devices_are_given_whole_batches() -> None:
    asked = "multi_worker_mirrored:devices=2"
    for replicas, said in call("tf_alone", "batches_of_their_own", n=2, strategy=asked):
        assert replicas == 4
        assert said.startswith("Unsupported: Ranks of several devices are each given the whole")


def test_what_a_rank_has_logged_is_written_at_its_end(tmp_path: Path) -> None:
    call("tf_alone", "logged", str(tmp_path), n=1)
    (events,) = tmp_path.iterdir()
    assert b"at the end" in events.read_bytes()
