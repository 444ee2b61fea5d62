"""Precision and recomputation over the torch cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import contract_torch_names as names
import pytest
from contract_cells import TORCH
from contract_check import assert_close, assert_identical, assert_raised, difference
from contract_job import Job
from contract_over import job_and_case

over = partial(job_and_case, TORCH)


@pytest.fixture(scope="session")
def oracle(run_oracle: Callable[[str], Job]) -> Job:
    return run_oracle("torch")


WHOLE, HALF = "torch.float32", "torch.float16"
TYPES = {
    "float16": ([WHOLE], [WHOLE]),
    "O0": ([WHOLE], [WHOLE]),
    "O2": ([HALF], [WHOLE]),
    "O3": ([HALF], [HALF]),
}
"""Level -> types of parameters and gradients, and of the optimizer's state."""


@over(*names.LEVELS)
def test_a_level_is_that_of_one_device(job: Job, oracle: Job, case: str) -> None:
    """Three times what one device differs from itself when each batch is summed in two parts; in
    float32, 1e-6."""
    level = case.rpartition("_")[2]
    (one,) = oracle.figures(case, "single")
    ranks = job.figures(case)
    assert_identical([rank["parameters"] for rank in ranks])
    noise = difference(one["noisy"], one["parameters"])
    limit = 1e-6 if level == "O0" else 3 * noise
    assert level == "O0" or 0 < noise < 2e-2
    assert_close(ranks[0]["parameters"], one["parameters"], limit)
    assert all(rank["values"] == ranks[0]["values"] for rank in ranks)
    for rank in (*ranks, one):
        assert (rank["held"], rank["state"]) == TYPES[level]
        assert rank["outputs"] == [WHOLE]
        assert rank["values"] == pytest.approx(one["values"], abs=max(1e-6, 10 * noise))


@over("cast_but_for_norms")
def test_norms_keep_their_type(job: Job, oracle: Job, case: str) -> None:
    """As near to one device in O2 as that is to itself in float32."""
    (one,) = oracle.figures(case, "single")
    ranks = job.figures(case)
    assert_identical([rank["parameters"] for rank in ranks])
    limit = difference(one["parameters"], one["uncast"])
    assert 0 < limit < 2e-2
    assert_close(ranks[0]["parameters"], one["parameters"], limit)
    assert all(rank["whole"] == one["whole"] for rank in ranks)
    assert len(one["whole"]) == 6


@over("a_step_that_overflows_on_one_rank")
def test_a_step_skipped_on_one_rank_is_skipped_on_all(job: Job, oracle: Job, case: str) -> None:
    for level in job.figures(case)[0]["found"]:
        ranks = [rank["found"][level] for rank in job.figures(case)]
        (one,) = (figures["found"][level] for figures in oracle.figures(case, "single"))
        assert_identical([rank["parameters"] for rank in ranks])
        for rank in (*ranks, one):
            assert rank["changed"] == [True, False, True, True]
        for speaker in (ranks[0], one):
            (line,) = speaker["lines"]
            assert "32768" in line


@over("clipped_in_float16")
def test_clipping_acts_on_the_unscaled_gradient(job: Job, case: str) -> None:
    """Elsewhere a norm is taken of a gradient 65536 times too large."""
    for rank in job.figures(case):
        assert_close(rank["by_hand"], rank["by_option"], 0.0)


@over("scaling_refused")
def test_what_would_undo_the_loss_scale_is_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["changed"], "ConfigurationError", "scaled until", "clip_norm=")
        assert_raised(rank["later"], "ConfigurationError", "in the block only", "train_step")
        assert_raised(rank["closure"], "Unsupported", "SGD.step(closure)", "bfloat16")
        assert_raised(rank["scaler"], "Unsupported", "GradScaler")


@over("recomputed", "recomputed_in_micro_batches")
def test_recomputing_changes_no_bit(job: Job, oracle: Job, case: str) -> None:
    for rank in (*job.figures(case), *oracle.figures(case, "single")):
        for how, found in rank.items():
            assert_close(found["parameters"], rank["none"]["parameters"], 0.0), how


@over("recomputed")
def test_what_is_recomputed_is_not_kept(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert rank["none"]["again"] == [0] * 6
        assert rank["all"]["again"] == [1] * 6
        assert all(found["evaluated"] == [1] * 6 for found in rank.values())
        saved = {how: found["saved"] for how, found in rank.items()}
        assert saved["all"] < saved["none"]
        if job.cell.strategy == "mirrored":
            assert rank["sqrt"]["again"] == [1, 1, 0, 0, 0, 0]  # the last run of two, and the list
            assert rank["named"]["again"] == [0, 1, 0, 0, 1, 0]
            assert saved["all"] < saved["sqrt"] < saved["named"] < saved["none"]


@over("recomputed_in_threads")
def test_copies_in_threads_recompute_to_the_same_bits(job: Job, case: str) -> None:
    (found,) = job.figures(case)
    for group in (found["hows"], found["local"]):
        for each in group.values():
            assert_close(each["parameters"], group["none"]["parameters"], 0.0)
    times = {how: each["times"] for how, each in found["hows"].items()}
    for index, once in enumerate(times["none"]):  # the look at a call's rows is not computed again
        assert times["all"][index] > 1.6 * once
        assert (times["named"][index] > 1.6 * once) == (index in (1, 4))
        assert "sqrt" not in times or (times["sqrt"][index] > 1.6 * once) == (index < 2)


@over("recomputed_in_threads")
def test_what_a_thread_draws_is_drawn_again(job: Job, case: str) -> None:
    """Every mask twice, whatever other threads draw meanwhile."""
    (found,) = job.figures(case)
    assert len(found["dropped"]) > 40
    assert {*found["dropped"].values()} == {2}


@over("recomputed_in_threads")
def test_what_threads_cannot_recompute_is_refused(job: Job, case: str) -> None:
    (found,) = job.figures(case)
    if job.cell.strategy == "data_parallel":
        assert_raised(found["met"], "Unsupported", "'chain.0'", "sync_batch_norm=False", "mirrored")
        assert found["cut"]["types"] == []
    else:
        assert found["met"]["types"] == []
        assert_raised(found["cut"], "ConfigurationError", "Sequential", "recompute=True")


@over("recompute_refused")
def test_layers_that_are_not_there_are_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["name"], "ConfigurationError", "'encodr'", "mean 'encoder'")
        assert_raised(rank["chain"], "ConfigurationError", "Net", "recompute=True")
