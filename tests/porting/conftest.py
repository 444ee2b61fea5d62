"""Two processes for all tests of this folder: one for torch's models, one for Keras's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dream.porting.check import Request, check
from dream.porting.process import Bench, bench
from dream.porting.verdict import Report

HERE = Path(__file__).parent
DRAW = np.random.default_rng(3)


def normal(*shape: int) -> dict[str, np.ndarray]:
    return {"x": DRAW.standard_normal(shape).astype(np.float32)}


BATCHES: dict[str, dict[str, np.ndarray]] = {
    "dense": normal(5, 6),
    "square": normal(5, 6),
    "conv1d": normal(5, 9, 3),
    "conv2d": normal(3, 11, 11, 3),
    "conv2d_same_stride": normal(3, 8, 8, 3),
    "conv_groups": normal(2, 9, 9, 4),
    "conv3d": normal(2, 4, 5, 6, 2),
    "generator": normal(4, 5),
    "batch_norm": normal(3, 8, 8, 3),
    "norms": normal(5, 6),
    "embedding": {"x": DRAW.integers(0, 11, (5, 4))},
    "attention": normal(3, 7, 8),
    "lstm": normal(4, 6, 5),
    "gru": normal(4, 6, 5),
    "bidirectional": normal(4, 6, 5),
    "time_first": normal(4, 6, 5),
    "tokens": {"tokens": DRAW.integers(0, 11, (5, 4)), "weights": normal(5, 4)["x"]},
    "inputs": {"x0": normal(4, 3)["x"], "x1": normal(4, 5)["x"]},
    "image": normal(2, 8, 8, 3),
    "flat_image": normal(2, 4, 5, 3),
}

Benches = Callable[[str], Bench]
Checked = Callable[..., Report]


def place(name: str) -> str:
    """ "torch:dense" -> where it is."""
    framework, _, function = name.partition(":")
    return f"{HERE / f'port_{framework}.py'}:{function}"


@pytest.fixture(scope="session")
def benches() -> Iterator[Benches]:
    """A framework's process, started when first asked for. "torch2": a second one of torch's."""
    with ExitStack() as up:
        made: dict[str, Bench] = {}

        def find(framework: str) -> Bench:
            if framework not in made:
                backend = "tensorflow" if framework == "keras" else None
                made[framework] = up.enter_context(
                    bench(f"the {framework} model", backend=backend, timeout=100)
                )
            return made[framework]

        yield find


@pytest.fixture
def checked(benches: Benches) -> Checked:
    """The report on two models, "torch:dense" and the like, and a batch of BATCHES."""

    def run(old: str, new: str, batch: str, **options: Any) -> Report:
        first, second = (name.partition(":")[0] for name in (old, new))
        sides = benches(first), benches(second if second != first else f"{second}2")
        arrays = BATCHES[batch] | options.pop("more", {})
        return check(Request(place(old), place(new), arrays, **options), *sides)

    return run


@pytest.fixture(autouse=True, scope="module")
def _processes_end() -> None:
    """They outlive their module; the session's end waits for them."""
