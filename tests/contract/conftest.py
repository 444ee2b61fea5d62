"""Each cell's job runs once, when its first test asks for it."""

from __future__ import annotations

from collections.abc import Callable

import contract_job
import pytest
from contract_cells import Cell, Kind, oracle
from contract_job import Job

Run = Callable[[Cell], Job]


@pytest.fixture(scope="session")
def run_cell(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The job of a cell."""
    jobs: dict[Cell, Job] = {}

    def run(cell: Cell) -> Job:
        if cell not in jobs:
            jobs[cell] = contract_job.run(cell, tmp_path_factory.mktemp(str(cell)))
        return jobs[cell]

    return run


@pytest.fixture(scope="session")
def run_oracle(run_cell: Run) -> Callable[[Kind], Job]:
    """The job of one device, plain and under `single`."""
    return lambda kind: run_cell(oracle(kind))


@pytest.fixture
def job(request: pytest.FixtureRequest, run_cell: Run) -> Job:
    """The job of the cell that the test is held over."""
    return run_cell(request.param)
