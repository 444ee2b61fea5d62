"""Two processes for all tests of this folder: one for torch's models, one for Keras's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from porting_kit import BATCHES, Benches, Checked, place

from dream.tools.model_process import ModelProcess, open_process
from dream.tools.port_check import worker
from dream.tools.port_check.check import PortCheckRequest, check
from dream.tools.port_check.verdict import PortReport


@pytest.fixture(scope="session")
def benches() -> Iterator[Benches]:
    """A framework's process, started when first asked for. "torch2": a second one of torch's."""
    with ExitStack() as up:
        made: dict[str, ModelProcess] = {}

        def find(framework: str) -> ModelProcess:
            if framework not in made:
                backend = "tensorflow" if framework == "keras" else None
                who, where = f"the {framework} model", place(f"{framework.rstrip('2')}:dense")
                made[framework] = up.enter_context(
                    open_process(who, worker.__name__, where, 500, backend)
                )
            return made[framework]

        yield find


@pytest.fixture
def checked(benches: Benches) -> Checked:
    """The report on two models, "torch:dense" and the like, and a batch of BATCHES."""

    def run(old: str, new: str, batch: str, **options: Any) -> PortReport:
        first, second = (name.partition(":")[0] for name in (old, new))
        sides = benches(first), benches(second if second != first else f"{second}2")
        arrays = BATCHES[batch] | options.pop("more", {})
        return check(PortCheckRequest(place(old), place(new), arrays, **options), *sides)

    return run


@pytest.fixture(autouse=True, scope="module")
def _processes_end() -> None:
    """They outlive their module; the session's end waits for them."""
