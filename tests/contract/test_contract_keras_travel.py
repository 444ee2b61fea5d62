"""Compression and Adasum over the Keras cells, on both backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import contract_adasum
import numpy as np
import pytest
from contract_cells import KERAS_TF, KERAS_TORCH, Kind
from contract_check import assert_identical, assert_raised, difference
from contract_job import Job
from contract_over import job_and_case

CELLS = KERAS_TF + KERAS_TORCH
over = partial(job_and_case, [cell for cell in CELLS if cell.processes > 1])
Oracle = Callable[[Kind], Job]

STATED = {
    "float16": (0.54, 1e-3),
    "bfloat16": (0.54, 1e-2),
    "powersgd:2": (0.65, 0.3),
    "topk:0.1": (0.5, 0.6),
}
"""Compression -> largest share of the bytes, and largest difference of a parameter from one device
after 20 updates."""
FIGURES = 160
"""Bytes of a step of fit beside the gradients': of metrics, and of what tells batches apart."""


@over("compressed")
def test_compression_sends_less_and_says_how_far_it_is_off(
    job: Job, run_oracle: Oracle, case: str
) -> None:
    (one,) = run_oracle(job.cell.kind).figures(case, "single")
    ranks = job.figures(case)
    elements = sum(array.size for array in one["parameters"].values())
    whole = 4 * elements * 2 * (len(ranks) - 1) / len(ranks)
    for kind in ranks[0]:
        share, error = STATED[kind]
        for key in ("parameters", "stepped"):
            assert_identical([rank[kind][key] for rank in ranks], f"{kind} {key}")
            assert 0 < difference(ranks[0][kind][key], one[key]) <= error, (kind, key)
        for rank in ranks:
            assert 0 < rank[kind]["step_bytes"] <= share * whole, kind
            assert rank[kind]["fit_bytes"] <= share * whole + FIGURES, kind
            assert rank[kind]["learnt"] == pytest.approx(one["learnt"], rel=0.2), kind


@over("adasum")
def test_adasum_is_the_papers_formula(job: Job, case: str) -> None:
    ranks = job.figures(case)
    if len(ranks) & (len(ranks) - 1):
        for rank in ranks:
            assert_raised(rank["refusal"], "ConfigurationError", "power of two", "3 ranks")
        return
    assert not ranks[0]["refusal"]["types"], ranks[0]["refusal"]["message"]
    wanted = [contract_adasum.of_all(own) for own in zip(*(r["own"] for r in ranks), strict=True)]
    for rank in ranks:
        for key in ("fit", "step"):
            for found, right in zip(rank[key], wanted, strict=True):
                assert np.allclose(found, right, rtol=1e-5, atol=1e-6), key
        assert rank["losses"] == ranks[0]["losses"]
        assert rank["losses"][-1] < rank["losses"][0]
    assert_identical([rank["parameters"] for rank in ranks])


@over("travel_refused")
def test_what_cannot_travel_is_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["scaled"], "Unsupported", "LossScaleOptimizer", "'topk'")
        if job.cell.framework == "tensorflow":
            assert_raised(rank["low_rank"], "Unsupported", "powersgd:2", "'float16'")


ONE_PROCESS = [c for c in KERAS_TF if c.strategy == "mirrored" and c.processes == 1]


@partial(job_and_case, ONE_PROCESS)("travel_refused")
def test_devices_of_one_process_are_refused(job: Job, case: str) -> None:
    (figures,) = job.figures(case)
    words = ("compression='float16'", f"dream run -n {job.cell.replicas}")
    assert_raised(figures["rounded"], "Unsupported", *words)
    assert_raised(figures["low_rank"], "Unsupported", "powersgd:2")
