"""Jobs that stay up for all tests of this folder, each started when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import ranks_job
from ranks_job import Ranks

Job = Callable[[str, int], Ranks]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one job in turn: each job is started once, not once a test."""
    places = [i for i, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[i] for i in places), key=_job_of)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _job_of(item: pytest.Item) -> tuple[str, int]:
    """Tests that start what they need by themselves come first."""
    given = getattr(getattr(item, "callspec", None), "params", {})
    return (given["framework"], given["size"]) if "size" in given else ("", 0)


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The job of (framework, ranks). One at a time is up: the ring's ranks never sleep."""
    with ExitStack() as up:
        made: dict[tuple[str, int], Ranks] = {}

        def find(framework: str, size: int) -> Ranks:
            if (framework, size) not in made:
                up.close()
                made.clear()
                log = tmp_path_factory.mktemp("ranks") / "log"
                made[framework, size] = up.enter_context(ranks_job.ranks(framework, size, log))
            return made[framework, size]

        yield find


@pytest.fixture(autouse=True, scope="module")
def _processes_end() -> None:
    """A job outlives its module; the session's end waits for it."""
