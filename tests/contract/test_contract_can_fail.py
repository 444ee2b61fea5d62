"""The laws notice what they are there for.

Known wrong behaviours of other libraries, and dream made wrong on purpose, are held against the
same judgements as the cells, and must be found guilty.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract_cells import Cell, Kind
from contract_check import assert_equals_one_device, assert_identical, difference, global_order
from contract_job import Job

pytestmark = pytest.mark.slow
Oracle = Callable[[Kind], Job]
RAW = Cell("raw_torch", "mirrored", "gloo", 2, 2)
RAW_KERAS = Cell("raw_keras_tf", "mirrored", "auto", 2, 1)


@pytest.fixture(scope="module")
def raw(run_cell: Callable[[Cell], Job]) -> Job:
    return run_cell(RAW)


@pytest.mark.parametrize("kind", ["torch"])
@pytest.mark.parametrize(
    ("case", "right"),
    [
        ("raw_mean_of_means", "uneven_momentum"),
        ("raw_padded_sampler", "uneven_momentum"),
        ("raw_clip_before_reduce", "clipping_the_norm_between_backward_and_step"),
        ("raw_accumulated_mean_of_means", "accumulated_momentum"),
        ("raw_accumulated_token_loss", "step_weighted_by_tokens"),
        ("raw_accumulated_and_clipped", "accumulated_and_clipped"),
        ("mutant_shares_count_alike", "uneven_momentum"),
        ("mutant_deals_runs_that_overlap", "uneven_momentum"),
    ],
)
def test_a_wrong_gradient_is_far_off(
    raw: Job, run_oracle: Oracle, kind: Kind, case: str, right: str
) -> None:
    (one,) = run_oracle(kind).figures(right, "single")
    for rank in raw.figures(case):
        assert difference(rank["parameters"], one["parameters"]) > 1e-3


def test_the_padded_sampler_shows_samples_twice(raw: Job) -> None:
    assert sum(rank["seen"] for rank in raw.figures("raw_padded_sampler")) > 3 * 61


@pytest.mark.parametrize(("kind", "right"), [("torch", "shuffled_order")])
def test_an_order_that_stays_is_noticed(
    raw: Job, run_oracle: Oracle, kind: Kind, right: str
) -> None:
    (one,) = run_oracle(kind).figures(right, "single")
    ranks = raw.figures("mutant_every_epoch_alike")
    orders = [global_order([rank["seen"][epoch] for rank in ranks]) for epoch in range(3)]
    assert orders[0] == orders[1] != one["seen"][1]


def test_files_of_every_rank_are_noticed(raw: Job) -> None:
    assert raw.figures("mutant_every_rank_writes")[1]["shared"] == 1


def test_a_bit_is_noticed(raw: Job) -> None:
    ranks = [rank["parameters"] for rank in raw.figures("mutant_rank_1_is_one_step_behind")]
    with pytest.raises(AssertionError, match=r"0\.head\.bias differs"):
        assert_identical(ranks)


def test_one_case_that_fails_is_told_by_every_rank() -> None:
    job = Job(RAW, {("cell.a", 0): ("figures", {}), ("cell.a", 1): ("error", "ValueError: x")})
    with pytest.raises(AssertionError, match="rank 1: ValueError: x"):
        job.figures("a")
    with pytest.raises(AssertionError, match="no result"):
        assert_equals_one_device(job, job, "never_run")


@pytest.mark.parametrize("kind", ["keras_tf"])
@pytest.mark.parametrize(
    ("case", "right"),
    [
        ("raw_uneven", "rank_dependent_initial_weights"),
        ("raw_clipping", "global_clipnorm"),
    ],
)
def test_keras_under_tensorflows_own_strategy_is_far_off(
    run_cell: Callable[[Cell], Job], run_oracle: Oracle, kind: Kind, case: str, right: str
) -> None:
    (wrong,) = run_cell(RAW_KERAS).figures(case)
    (one,) = run_oracle(kind).figures(right, "single")
    assert difference(wrong["parameters"], one["parameters"]) > 1e-3
