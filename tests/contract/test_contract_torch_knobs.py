"""The knobs over the torch cells: accumulation and clipping change no number."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import contract_torch_names as names
import pytest
from contract_cells import TORCH
from contract_check import assert_close, assert_equals_one_device
from contract_job import Job
from contract_over import job_and_case

over = partial(job_and_case, TORCH)


@pytest.fixture(scope="session")
def oracle(run_oracle: Callable[[str], Job]) -> Job:
    return run_oracle("torch")


@pytest.mark.parametrize("case", names.ACCUMULATED)
def test_one_device_accumulates_to_its_own_numbers(oracle: Job, case: str) -> None:
    (single,) = oracle.figures(case, "single")
    assert_close(single["accumulated"], single["parameters"])


@over(*names.ACCUMULATED, "clip_norm_in_a_step")
def test_equals_one_device(job: Job, oracle: Job, case: str) -> None:
    assert_equals_one_device(job, oracle, case)


@over(*names.CLIPPED)
def test_clips_the_global_gradient(job: Job, oracle: Job, case: str) -> None:
    assert_equals_one_device(job, oracle, case, mode="plain")
    (plain,) = oracle.figures(case, "plain")
    (single,) = oracle.figures(case, "single")
    assert_close(single["parameters"], plain["parameters"], 0.0)


@over("accumulated_with_schedules_and_clipping")
def test_schedules_go_by_updates(job: Job, oracle: Job, case: str) -> None:
    (one,) = oracle.figures(case, "single")
    assert one["count"] == 20
    for rank in job.figures(case):
        assert (rank["count"], rank["rates"]) == (one["count"], one["rates"])


@over("accumulated_step", "accumulated_step_weighted_by_tokens")
def test_a_step_says_the_global_mean_loss(job: Job, oracle: Job, case: str) -> None:
    (one,) = oracle.figures(case, "single")
    for rank in job.figures(case):
        assert rank["values"] == pytest.approx(one["values"], abs=1e-6)


@over("communications_of_an_update")
def test_an_update_travels_once(job: Job, case: str) -> None:
    """Four updates, each of the gradients' bytes, however many micro-batches they come in."""
    for rank in job.figures(case):
        assert sum(rank["plain"]) == 4 * rank["wanted"]
        assert sum(rank["accumulated"]) == 4 * rank["wanted"]
