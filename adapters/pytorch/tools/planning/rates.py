"""What torch computes and moves a second on this machine, in this process."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F

from dream.adapters.pytorch.tools.planning.ledger import Ledger
from dream.tools.plan.calibrate import Rates

_SECONDS = 0.3
"""For each reading, at least."""
_WIDTH = 512
_LAYERS = 20
_ANEW, _TIMES = 16 << 20, 5
"""Bytes that the system gives, and how often."""
_LARGE = 4 << 20
"""Elements: more than caches hold."""


def read(dtype: str) -> Rates:
    """dtype: as torch spells it."""
    kind = getattr(torch, dtype)
    a, b = torch.randn(_WIDTH, _WIDTH, dtype=kind), torch.randn(_WIDTH, _WIDTH, dtype=kind)
    image = torch.randn(8, 32, 32, 32, dtype=kind)
    kernel = torch.randn(64, 32, 3, 3, dtype=kind)
    x, y = torch.randn(_LARGE), torch.randn(_LARGE)
    out = torch.empty_like(x)
    product = _seconds(lambda: a @ b)
    convolved = _seconds(lambda: F.conv2d(image, kernel, padding=1))
    added = _seconds(lambda: torch.add(x, y, out=out))
    return Rates(
        matmul=2 * _WIDTH**3 / product,
        convolution=2 * 8 * 64 * 32 * 9 * 32 * 32 / convolved,
        bandwidth=3 * x.numel() * x.element_size() / added,
        launch=_launch(),
        fresh=median(_fresh() for _ in range(_TIMES)),
    )


def _fresh() -> float:
    """Seconds of a byte that is written for the first time, beside those of writing it."""
    with mmap.mmap(-1, _ANEW) as memory:
        given = torch.frombuffer(memory, dtype=torch.uint8)
        taken = []
        for _ in range(2):
            begin = perf_counter()
            given.zero_()
            taken.append(perf_counter() - begin)
        del given  # or the memory could not be given back
    return max(0.0, taken[0] - taken[1]) / _ANEW


def _launch() -> float:
    """Seconds that an operation of a training step costs however small it is."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(_LAYERS)))
    x = torch.ones(2, 4)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).sum().backward()

    ledger = Ledger()
    with ledger:
        step()
    return _seconds(step) / len(ledger.done)


def _seconds(call: Callable[[], object]) -> float:
    """Of one call: the median of blocks."""
    call()
    begin = perf_counter()
    call()
    one = max(1e-7, perf_counter() - begin)
    calls = max(1, int(0.02 / one))
    taken: list[float] = []
    while sum(taken) * calls < _SECONDS or len(taken) < 3:
        begin = perf_counter()
        for _ in range(calls):
            call()
        taken.append((perf_counter() - begin) / calls)
    return median(taken)
