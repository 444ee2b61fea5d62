"""The knobs over the torch cells: accumulation and clipping change no number."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import contract_torch_names as names
import pytest
from contract_cells import TORCH
from contract_check import (
    assert_close,
    assert_equals_one_device,
    assert_identical,
    assert_raised,
    difference,
)
from contract_job import Job
from contract_over import job_and_case

over = partial(job_and_case, TORCH)
ALSO = ("accumulated_momentum",)


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
    assert one["count"] == 12
    for rank in job.figures(case):
        assert (rank["count"], rank["rates"]) == (one["count"], one["rates"])


@over("accumulated_step", "accumulated_step_weighted_by_tokens")
def test_a_step_says_the_global_mean_loss(job: Job, oracle: Job, case: str) -> None:
    (one,) = oracle.figures(case, "single")
    for rank in job.figures(case):
        assert rank["values"] == pytest.approx(one["values"], abs=1e-6)


@over("communications_of_an_update")
def test_an_update_travels_once(job: Job, case: str) -> None:
    """Four updates, each of the gradients' bytes and at most a message, however many micro-batches
    they come in. Beside them there are only digests, and what is agreed on once."""
    for rank in job.figures(case):
        for travelled in (rank["plain"], rank["accumulated"]):
            assert 0 <= sum(travelled) - 4 * rank["wanted"] <= 300
            assert sum(size > 64 for size in travelled) % 4 == 0  # a split model's in several parts


@over("an_update_left_early")
def test_what_was_left_changes_nothing(job: Job, oracle: Job, case: str) -> None:
    assert_equals_one_device(job, oracle, case)
    assert_equals_one_device(job, oracle, case, key="begin")
    for rank in (*job.figures(case), *oracle.figures(case, "single")):
        assert_close(rank["parameters"], rank["never"])


@over("precision_bfloat16")
def test_a_lower_precision_is_within_its_own_noise(job: Job, oracle: Job, case: str) -> None:
    """Three times what one device differs from itself when each batch is summed in two parts."""
    (one,) = oracle.figures(case, "single")
    ranks = job.figures(case)
    assert_identical([rank["parameters"] for rank in ranks])
    noise = difference(one["accumulated"], one["parameters"])
    assert 0 < noise < 2e-2
    assert_close(ranks[0]["parameters"], one["parameters"], 3 * noise)
    assert all(rank["dtypes"] == one["dtypes"] == ["torch.float32"] for rank in ranks)


@over("knobs_of_ddp")
def test_ddps_knobs_change_no_number(job: Job, oracle: Job, case: str) -> None:
    (one,) = oracle.figures("accumulated_momentum", "single")
    for rank in job.figures(case):
        assert len(rank) == 4
        for found in rank.values():
            assert_close(found, one["parameters"])


@over("knobs_refused")
def test_what_cannot_be_honoured_is_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["every_other"], "ConfigurationError", "SGD.step", "remove accumulate")
        assert_raised(rank["twice"], "ConfigurationError", "once for each micro-batch")
        hidden = job.cell.options.startswith(("zero=2", "zero=3"))  # where nobody can touch them
        for unseen in () if hidden else ("clip_unseen", "clear_unseen"):
            assert_raised(rank[unseen], "ConfigurationError", "gradient was changed", "clip_norm=")
        assert_raised(rank["closure"], "Unsupported", "SGD.step(closure)")
        assert_raised(rank["scaler"], "Unsupported", "GradScaler")
        assert_raised(rank["by_hand"], "Unsupported", "accumulate=2", "train_step")


@over("knobs_a_split_cannot_honour")
def test_what_a_split_cannot_honour_is_refused_by_name(job: Job, case: str) -> None:
    rows = "split=layers" in job.cell.options  # of devices, which do not meet
    refused = {"sync_batch_norm": "sync_batch_norm=True"} if rows else {}
    for rank in job.figures(case):
        for name, refusal in rank.items():
            if name in refused:
                assert_raised(refusal, "Unsupported", refused[name], "mirrored")
            else:
                assert refusal["types"] == []


@over("batch_norm_over_all_ranks")
def test_batch_norm_over_all_ranks_is_that_of_one_device(job: Job, oracle: Job, case: str) -> None:
    """Statistics of unequal shares, weights, and what they do when evaluated."""
    assert_equals_one_device(job, oracle, case, mode="plain")


@over("batch_norm_and_a_count_of_zero")
def test_samples_that_count_for_nothing_are_normalised_with(
    job: Job, oracle: Job, case: str
) -> None:
    assert_equals_one_device(job, oracle, case)
