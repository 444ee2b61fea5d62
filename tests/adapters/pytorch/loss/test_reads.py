"""A loop that reads numbers of its share is told whose they are: once, and only such a loop."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.loss.reads import ReadNumbers
from dream.data.partition import Share

X = torch.arange(3.0)


def evaluated() -> None:
    with torch.no_grad():
        int(X.sum())


def by_a_library() -> None:
    scope = {"__name__": "torch.optim.adam", "x": X}
    exec("x.sum().item()", scope)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda: X.sum().item(), True),
        (lambda: float(X.sum()), True),
        (lambda: X.tolist(), True),
        (lambda: X.numpy(), True),
        (lambda: f"{X.sum() / 3:.2f}", True),
        (lambda: repr(X), True),
        (lambda: X.sum().detach(), True),
        (lambda: X.detach(), False),
        (lambda: X.sum(), False),
        (evaluated, False),
        (by_a_library, False),
    ],
    ids=[
        "item",
        "float",
        "tolist",
        "numpy",
        "in words",
        "printed",
        "a number off its graph",
        "a batch off its graph",
        "a tensor",
        "without gradients",
        "by a library",
    ],
)
def test_only_a_loop_that_reads_its_part_is_told(
    caplog: pytest.LogCaptureFixture, read: Callable[[], object], told: bool, parts: int
) -> None:
    shares, hooks, passes = Shares(), Hooks(), object()
    ReadNumbers(shares).subscribe(hooks)
    hooks.open()
    try:
        with caplog.at_level(logging.INFO, "dream"):
            read()
            assert not caplog.records, "before there was a batch"
            shares.yielded(X, Share(3, 6, parts), passes)
            read()
            shares.ended(passes)
            read()
    finally:
        hooks.close()
    assert len(caplog.records) == (told and parts > 1)
