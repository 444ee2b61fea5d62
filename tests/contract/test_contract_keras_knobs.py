"""The knobs over the Keras cells, on both backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import contract_keras_names as names
import pytest
from contract_cells import KERAS_TF, KERAS_TORCH, Kind, oracle
from contract_check import (
    assert_close,
    assert_equals_one_device,
    assert_identical,
    assert_raised,
    difference,
)
from contract_job import Job
from contract_over import job_and_case, marks

KINDS: list[Kind] = ["keras_tf", "keras_torch"]
Oracle = Callable[[Kind], Job]
over = partial(job_and_case, KERAS_TF + KERAS_TORCH)
FITTED = tuple(case for case in names.ACCUMULATED if "step" not in case)


@pytest.fixture
def one(job: Job, run_oracle: Oracle) -> Job:
    return run_oracle(job.cell.kind)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, marks=marks(oracle(kind), case))
        for kind in KINDS
        for case in names.ACCUMULATED
    ],
)
def test_one_device_accumulates_to_its_own_numbers(
    run_oracle: Oracle, kind: Kind, case: str
) -> None:
    (single,) = run_oracle(kind).figures(case, "single")
    assert_close(single["accumulated"], single["parameters"])


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, marks=marks(oracle(kind), case))
        for kind in KINDS
        for case in names.CLIPPED
        if "step" not in case
    ],
)
def test_one_device_clips_as_keras_does(run_oracle: Oracle, kind: Kind, case: str) -> None:
    (plain,) = run_oracle(kind).figures(case, "plain")
    (single,) = run_oracle(kind).figures(case, "single")
    assert_close(single["parameters"], plain["parameters"])


@over(*names.ACCUMULATED, *names.CLIPPED, *names.NORMALISED)
def test_equals_one_device(job: Job, one: Job, case: str) -> None:
    if any("left_out" in figures for figures in job.figures(case)):
        pytest.skip(job.figures(case)[0]["left_out"])
    assert_equals_one_device(job, one, case)


@over(*FITTED)
def test_the_logs_are_those_of_whole_batches(job: Job, one: Job, case: str) -> None:
    (single,) = one.figures(case, "single")
    for rank in job.figures(case):
        if "history" in rank:
            assert_close(rank["history"], single["history"], 2e-6)


@over("accumulated_step", "accumulated_step_weighted_by_counts")
def test_a_step_says_the_global_mean_loss(job: Job, one: Job, case: str) -> None:
    (single,) = one.figures(case, "single")
    for rank in job.figures(case):
        assert rank["values"] == pytest.approx(single["values"], abs=2e-6)


@over("precision_bfloat16", "precision_float16")
def test_a_lower_precision_is_within_its_own_noise(job: Job, one: Job, case: str) -> None:
    """Three times what one device differs from itself when each batch is summed in two parts."""
    (single,) = one.figures(case, "single")
    ranks = job.figures(case)
    assert_identical([rank["parameters"] for rank in ranks])
    noise = difference(single["accumulated"], single["parameters"])
    assert 0 < noise < 2e-2
    assert_close(ranks[0]["parameters"], single["parameters"], 3 * noise)
    mixed = case.replace("precision", "mixed")
    assert all((r["policies"], r["policy_after"]) == ([mixed], "float32") for r in ranks)


LEVELS = {
    "O0": ("float32", {"float32"}, "SGD"),
    "O1": ("float16", {"float32"}, "LossScaleOptimizer"),
    "O2": ("float16", {"float32"}, "LossScaleOptimizer"),
    "O3": ("float16", {"float16"}, "SGD"),
}
"""What a layer computes in, the weights' types, and what steps."""


@over("precision_levels")
def test_a_level_is_what_the_literature_calls_it(job: Job, one: Job, case: str) -> None:
    ranks = job.figures(case)
    if "left_out" in ranks[0]:
        pytest.skip(ranks[0]["left_out"])
    (single,) = one.figures(case, "single")
    assert list(ranks[0]) == (list(LEVELS) if names.fully(job.cell) else ["O3"])
    for level in ranks[0]:
        compute, weights, optimizer = LEVELS[level]
        assert_identical([rank[level]["parameters"] for rank in ranks], level)
        own = ranks[0][level]
        assert (own["compute"], own["weights"], own["optimizer"]) == (compute, weights, optimizer)
        near = 1e-6 if level == "O0" else 2e-2
        assert_close(own["parameters"], single[level]["parameters"], near)


def _recomputed(figures: Any, tolerance: float = 0.0, *, fully: bool = True) -> None:
    kept = figures["kept"]
    for found in figures.values():
        assert_close(found["parameters"], kept["parameters"], tolerance)
    assert figures["all"]["calls"] > kept["calls"]
    if fully:
        assert figures["sqrt"]["calls"] > kept["calls"] == figures["named"]["calls"]
    else:
        assert figures.keys() == {"kept", "all"}


@over(*names.RECOMPUTED)
def test_what_is_computed_again_is_the_same_to_the_bit(job: Job, case: str) -> None:
    """In a stage of a pipeline TensorFlow fuses other operations, which costs the last bit."""
    for rank in job.figures(case):
        near = 1e-6 if "split=pipeline" in job.cell.options else 0.0
        _recomputed(rank, near, fully=names.fully(job.cell))


@over("recomputed_in_half")
def test_backward_computes_again_in_the_type_of_forward(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_close(rank["all"], rank["kept"], 1e-3)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, marks=marks(oracle(kind), case))
        for kind in KINDS
        for case in names.RECOMPUTED
    ],
)
def test_one_device_computes_the_same_again(run_oracle: Oracle, kind: Kind, case: str) -> None:
    _recomputed(run_oracle(kind).figures(case, "single")[0])


@over("knobs_refused")
def test_what_cannot_be_honoured_is_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["twice"], "ConfigurationError", "clipped twice", "clipnorm=1.0")
        assert_raised(rank["own_step"], "Unsupported", "OwnStep.train_step")
        assert_raised(rank["unscaled"], "ConfigurationError", "LossScaleOptimizer")
