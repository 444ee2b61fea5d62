"""Each cell's job runs once. All that the collected tests ask for are started ahead, two at a
time, so that a job of one process leaves no core idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import contract_job
import pytest
from contract_cells import Cell, Kind, oracle
from contract_job import Job

Run = Callable[[Cell], Job]
AT_ONCE = 2


@pytest.fixture(scope="session")
def run_cell(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    """The job of a cell."""
    jobs: dict[Cell, Future[Job]] = {}
    asked = _asked_for(request.session.items)
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def start(cell: Cell) -> Future[Job]:
            if cell not in jobs:
                folder = tmp_path_factory.mktemp(str(cell))
                jobs[cell] = pool.submit(contract_job.run, cell, folder, asked.get(cell, ()))
            return jobs[cell]

        for cell in asked:
            start(cell)
        yield lambda cell: start(cell).result()
        for job in jobs.values():
            job.cancel()


def _asked_for(items: list[pytest.Item]) -> dict[Cell, frozenset[str]]:
    """The cells of the collected tests, each kind's oracle first, with the cases that they are
    asked for. A test's parameters say its cell or its kind, and its case; or "right", where the
    oracle's is another. A module names in ALSO those of the oracle that no parameter of its tests
    has."""
    found: dict[Cell, set[str]] = {}
    for item in items:
        also = getattr(item.module, "ALSO", ())
        params = item.callspec.params if hasattr(item, "callspec") else {}
        cell = params.get("job")
        if isinstance(cell, Cell):
            found.setdefault(oracle(cell.kind), set()).update({params["case"], *also})
            found.setdefault(cell, set()).add(params["case"])
        elif "kind" in params and (name := params.get("right") or params.get("case")):
            found.setdefault(oracle(params["kind"]), set()).update({name, *also})
        elif "case" in params and "oracle" in item.fixturenames:
            found.setdefault(oracle("torch"), set()).update({params["case"], *also})
    return {cell: frozenset(names) for cell, names in found.items()}


@pytest.fixture(scope="session")
def run_oracle(run_cell: Run) -> Callable[[Kind], Job]:
    """The job of one device, plain and under `single`."""
    return lambda kind: run_cell(oracle(kind))


@pytest.fixture(autouse=True, scope="module")
def _processes_end() -> None:
    """Jobs run ahead of their tests, so a module may end while another's run; the pool waits for
    each job, and each job for its ranks."""


@pytest.fixture
def job(request: pytest.FixtureRequest, run_cell: Run) -> Job:
    """The job of the cell that the test is held over."""
    return run_cell(request.param)
