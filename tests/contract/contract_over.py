"""A law's parameters: every cell that can run here, with every case it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from contract_cells import Cell
from contract_names import again, runs

QUICK = ("torch-mirrored-gloo-2",)
"""The cells that quick runs of the tests include."""


def marks(cell: Cell, case: str) -> tuple[pytest.MarkDecorator, ...]:
    """When a case of a cell is run."""
    if again(cell, case):
        return pytest.mark.slow, pytest.mark.exhaustive
    return () if str(cell) in QUICK else (pytest.mark.slow,)


def job_and_case(cells: Sequence[Cell], *cases: str) -> Callable[..., Any]:
    """Decorator: the test is run for each cell's job and each case that the cell runs."""
    pairs = [
        pytest.param(
            cell,
            case,
            id=f"{cell}-{case}",
            marks=marks(cell, case),
        )
        for cell in cells
        if not cell.unavailable
        for case in cases
        if runs(cell, case)
    ]
    return pytest.mark.parametrize(("job", "case"), pairs, indirect=["job"])
