"""Compression and Adasum over the torch cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import contract_adasum
import numpy as np
import pytest
from contract_cells import TORCH
from contract_check import assert_identical, assert_raised, difference
from contract_job import Job
from contract_over import job_and_case

over = partial(job_and_case, TORCH)


@pytest.fixture(scope="session")
def oracle(run_oracle: Callable[[str], Job]) -> Job:
    return run_oracle("torch")


MESSAGE = 0.08
"""The part of this small model's bytes that a message of six numbers is, and the drift guard's
looks."""
STATED = {
    "float16": (0.53, 1e-3),
    "bfloat16": (0.53, 1e-2),
    "powersgd:2": (0.65, 0.3),
    "topk:0.1": (0.45, 0.6),
}
"""Compression -> largest share of the bytes, and largest difference of a parameter from one device
after 20 updates."""


@over("compressed")
def test_compression_sends_less_and_says_how_far_it_is_off(
    job: Job, oracle: Job, case: str
) -> None:
    (one,) = oracle.figures(case, "single")
    ranks = job.figures(case)
    for kind, (share, error) in STATED.items():
        assert_identical([rank[kind]["parameters"] for rank in ranks], kind)
        for rank in ranks:
            assert 0 < rank[kind]["ratio"] <= share + MESSAGE, kind
            assert 0 < difference(rank[kind]["parameters"], one[kind]["parameters"]) <= error, kind


@over("compressed")
def test_what_is_left_behind_comes_later(job: Job, oracle: Job, case: str) -> None:
    """Without feedback of what was not sent, it would learn another thing."""
    (one,) = oracle.figures(case, "single")
    for rank in job.figures(case):
        for kind in STATED:
            last = np.mean(rank[kind]["values"][-4:])
            assert last == pytest.approx(np.mean(one[kind]["values"][-4:]), rel=0.2), kind


@over("adasum")
def test_adasum_is_the_papers_formula(job: Job, case: str) -> None:
    ranks: Sequence[Mapping[str, Any]] = job.figures(case)
    if len(ranks) & (len(ranks) - 1):
        for rank in ranks:
            assert_raised(rank["refusal"], "ConfigurationError", "power of two", "3 ranks")
        return
    for name in ranks[0]["found"]:
        wanted = contract_adasum.of_all([rank["own"][name] for rank in ranks])
        for rank in ranks:
            assert np.allclose(rank["found"][name], wanted, rtol=1e-5, atol=1e-7), name
    assert_identical([rank["parameters"] for rank in ranks])
    assert all(rank["values"] == ranks[0]["values"] for rank in ranks)
