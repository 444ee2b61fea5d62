"""The knobs over the torch cells whose strategy owns the step: pipelines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from contract_cells import TORCH_SPLIT
from contract_check import (
    assert_close,
    assert_equals_one_device,
    assert_identical,
    assert_raised,
    difference,
)
from contract_job import Job
from contract_over import job_and_case

over = partial(job_and_case, TORCH_SPLIT)


@pytest.fixture(scope="session")
def oracle(run_oracle: Callable[[str], Job]) -> Job:
    return run_oracle("torch")


@over("owned_accumulated", "owned_accumulated_by_tokens", "owned_clip_value")
def test_a_pipelines_knobs_are_those_of_one_device(job: Job, oracle: Job, case: str) -> None:
    assert_equals_one_device(job, oracle, case)
    (one,) = oracle.figures(case, "single")
    assert_close(one["other"], one["parameters"])
    for rank in job.figures(case):
        assert rank["values"] == pytest.approx(one["values"], abs=2e-6)


HELD = {"O2": "torch.float16", "O3": "torch.float16"}
"""Level -> the type of gradients, where that is not float32."""


@over(*(f"owned_in_{name}" for name in ("bfloat16", "float16", "O2", "O3")))
def test_a_pipelines_precision_is_within_its_own_noise(job: Job, oracle: Job, case: str) -> None:
    """Three times what one device differs from itself when each batch is summed in two parts; of
    float32 it is further off than that is from it."""
    (one,) = oracle.figures(case, "single")
    ranks = job.figures(case)
    assert_identical([rank["parameters"] for rank in ranks])
    noise = difference(one["other"], one["parameters"])
    assert 0 < noise < 2e-2
    assert_close(ranks[0]["parameters"], one["parameters"], 3 * noise)
    held = HELD.get(case.rpartition("_")[2], "torch.float32")
    assert all(rank["held"] == [held] for rank in ranks)
    assert difference(ranks[0]["parameters"], one["whole"]) > 1e-5


@over("owned_in_O0")
def test_a_pipeline_is_cast_to_float32(job: Job, oracle: Job, case: str) -> None:
    assert_equals_one_device(job, oracle, case)
    assert all(rank["held"] == ["torch.float32"] for rank in job.figures(case))


@over("owned_overflow")
def test_a_pipelines_step_is_skipped_by_all_stages(job: Job, oracle: Job, case: str) -> None:
    ranks = job.figures(case)
    assert_identical([rank["parameters"] for rank in ranks])
    (one,) = oracle.figures(case, "single")
    assert_close(ranks[0]["parameters"], one["parameters"], 2e-2)
    for speaker in (ranks[0], one):
        (line,) = speaker["lines"]
        assert "32768" in line


@over("owned_recomputed")
def test_a_stage_is_computed_again_to_the_same_bits(job: Job, case: str) -> None:
    for rank in job.figures(case):
        for found in rank.values():
            assert_close(found["parameters"], rank["none"]["parameters"], 0.0)
        times = {how: found["times"] for how, found in rank.items()}
        for index, once in enumerate(times["none"]):
            assert (times["all"][index] > 1.8 * once) == (once > 0)
            assert (times["named"][index] > 1.8 * once) == (once > 0 and index in (1, 6))


@over("owned_knobs_refused")
def test_what_a_pipeline_cannot_honour_is_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["sqrt"], "Unsupported", "recompute='sqrt'", "recompute=True")
        assert_raised(rank["norm"], "Unsupported", "sync_batch_norm=True", "mirrored")
        assert_raised(rank["name"], "ConfigurationError", "'nine'")
        assert_raised(rank["followed"], "ConfigurationError", "['0']", "Sequential is", "inside it")
