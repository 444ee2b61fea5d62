"""Ranks that a fork server starts train to the same bits as fresh ones. The other files' ranks are
forked where a server is there; `make exhaustive` starts each of its own fresh."""

from __future__ import annotations

import os
from pathlib import Path

import contract_hashes
import contract_job
import pytest
from contract_cells import Cell

from dream.launch.forks.forked import SERVER

pytestmark = pytest.mark.slow
CASES = {
    Cell("torch", "mirrored", "gloo", 2, 2): ("uneven_momentum", "rank_dependent_initial_weights"),
    Cell("keras_tf", "mirrored", "shared_memory", 2, 2): ("uneven_momentum", "global_clipnorm"),
    Cell("keras_torch", "mirrored", "gloo", 2, 2): ("uneven_momentum", "global_clipnorm"),
}
HELD = "keras_torch"
"""Its parts are those of the other two."""


@pytest.mark.parametrize(
    "cell",
    [pytest.param(c, marks=[pytest.mark.exhaustive] * (c.kind == HELD), id=str(c)) for c in CASES],
)
def test_forked_ranks_train_as_fresh_ones(cell: Cell, tmp_path: Path) -> None:
    if not os.environ.get(SERVER):
        pytest.skip("no fork server is used here")
    forked, fresh = (
        contract_hashes.hashes(
            contract_job.run(cell, tmp_path / str(fresh), CASES[cell], fresh=fresh)
        )
        for fresh in (False, True)
    )
    assert forked == fresh
    assert len({each.hash for each in forked}) == 2  # the cases', alike on both ranks
    assert {len(each.hash) for each in forked} == {64}
