"""The laws over the torch cells whose strategy owns the step: pipelines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from contract_cells import TORCH_SPLIT
from contract_check import (
    assert_equals_one_device,
    assert_identical,
    assert_raised,
    by_name,
)
from contract_job import Job
from contract_over import job_and_case

over = partial(job_and_case, TORCH_SPLIT)
EXACT = (
    "owned_attention_momentum",
    "owned_even_adamw",
    "owned_shuffled_momentum",
    "owned_rank_dependent_initial_weights",
    "owned_clipping",
    "owned_weight_with_counts_of_zero",
    "owned_model_made_before",
    "owned_evaluation",
)


@pytest.fixture(scope="session")
def oracle(run_oracle: Callable[[str], Job]) -> Job:
    return run_oracle("torch")


@over(*EXACT)
def test_a_step_that_is_owned_equals_one_device(job: Job, oracle: Job, case: str) -> None:
    assert_equals_one_device(job, oracle, case)


@over("owned_attention_adamw")
def test_attention_in_stages_is_within_its_own_noise(job: Job, oracle: Job, case: str) -> None:
    """The batch is summed in microbatches, on each copy of the model."""
    ranks = [figures["parameters"] for figures in job.figures(case)]
    assert_identical(ranks)
    (single,) = oracle.figures(case, "single")
    parts = single["in_parts"].values()
    noises = [by_name(found, single["parameters"]) for found in parts]
    found = by_name(ranks[0], single["parameters"])
    bounds = {name: max(1e-6, 3 * max(n[name] for n in noises)) for name in found}
    assert all(found[name] <= bounds[name] for name in found), (found, bounds)


@over(
    "owned_attention_momentum",
    "owned_even_adamw",
    "owned_shuffled_momentum",
    "owned_weight_with_counts_of_zero",
)
def test_the_loss_of_a_pipeline_is_the_global_mean(job: Job, oracle: Job, case: str) -> None:
    (single,) = oracle.figures(case, "single")
    for rank in job.figures(case):
        assert rank["values"] == job.figures(case)[0]["values"]
        assert rank["values"] == pytest.approx(single["values"], abs=2e-6)


@over("owned_evaluation")
def test_a_pipeline_evaluates_every_sample_once(job: Job, oracle: Job, case: str) -> None:
    (single,) = oracle.figures(case, "single")
    for rank in job.figures(case):
        for ours, theirs in zip(rank["results"], single["results"], strict=True):
            assert ours[0] == theirs[0]
            assert ours[1] == theirs[1] == list(range(23))
            assert ours[2] == pytest.approx(theirs[2], abs=1e-4)
        assert rank["training"]


@over("owned_model_made_before")
def test_prepare_gives_the_same_object_back(job: Job, case: str) -> None:
    assert all(rank["alone"] for rank in job.figures(case))


@over("owned_refusals")
def test_what_a_pipeline_cannot_do_is_told(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["called"], "Unsupported", "Net", "strategy.train_step")
        assert_raised(rank["prepared"], "Unsupported", "Sequential", "strategy.train_step")
        assert_raised(rank["norm"], "Unsupported", "'1'", "BatchNorm1d", "LayerNorm", "mirrored")
        assert_raised(rank["tied"], "Unsupported", "2.weight", "sharded")
        assert_raised(rank["foreign"], "ConfigurationError", "SGD", "own optimizer")
        assert_raised(rank["loss"], "Unsupported", "train_step", "weight=")
