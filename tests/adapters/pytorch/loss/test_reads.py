"""A loop that reads numbers of its share is told whose they are: once, and only such a loop."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread

import pytest
import torch
from reads_scripts import OWN, QUIET

from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.loss.read_numbers import ReadNumbers, is_global
from dream.data.partition import Share

X = torch.arange(3.0)


def evaluated() -> None:
    with torch.no_grad():
        int(X.sum())


def by_a_library() -> None:
    scope = {"__name__": "torch.optim.adam", "x": X}
    exec("x.sum().item()", scope)


class Several:
    world_size = 2


def averaged() -> None:
    losses = [is_global(X.sum(), Several()).item()]  # type: ignore[arg-type]
    print(sum(losses) / 2)


def weighed() -> None:
    losses = [is_global(X.sum(), Several()).item()]  # type: ignore[arg-type]
    print(losses[0] * 3)


def by_rows() -> None:
    print(is_global(X.sum(), Several()).item(), len(X))  # type: ignore[arg-type]


SCRIPT = """
many = len(x) * 2
for _ in range(2):
    losses = [loss.item()]
    {}
"""


EPOCHS = """
for _ in range(2):
    sums = []
    for _ in range(2):
        g.zero_()
        loss.clone().backward
        sums.append(loss.item())
        {}
    print(sum(sums) * 1.0 / len(x))
"""


def epochs(line: str) -> Callable[[], None]:
    code = compile(EPOCHS.format(line), "script.py", "exec")
    loss = is_global(X.sum(), Several())  # type: ignore[arg-type]
    return lambda: exec(code, {"__name__": "__main__", "x": X, "g": X * 0, "loss": loss})


def script(line: str) -> Callable[[], None]:
    code = compile(SCRIPT.format(line), "script.py", "exec")
    loss = is_global(X.sum(), Several())  # type: ignore[arg-type]
    return lambda: exec(code, {"__name__": "__main__", "x": X, "loss": loss})


def alone(read: Callable[[], object]) -> None:
    """Without pytest's own frames below it."""
    thread = Thread(target=read)
    thread.start()
    thread.join()


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
        (averaged, False),
        (weighed, True),
        (by_rows, True),
        (script("sum(losses)"), False),
        (script("losses[0] * many"), True),
        (script("x.size(0)"), True),
        (epochs("pass"), False),
        (epochs("sums[-1] *= len(x)"), True),
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
        "a global loss",
        "a global loss that is weighed",
        "a global loss beside a size",
        "a global loss in a script",
        "a global loss that a script weighs",
        "a global loss beside a size in a script",
        "a size in a loop over epochs",
        "a size in a loop over batches",
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
            alone(read)
            assert not caplog.records, "before there was a batch"
            shares.yielded(X, Share(3, 6, parts), passes)
            alone(read)
            shares.ended(passes)
            alone(read)
    finally:
        hooks.close()
    assert len(caplog.records) == (told and parts > 1)


JOB = Path(__file__).with_name("reads_job.py")


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.exhaustive)])
def said(request: pytest.FixtureRequest) -> Mapping[str, list[str]]:
    command = [sys.executable, "-m", "dream", "run", "-n", str(request.param), str(JOB)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("name", QUIET | OWN)
def test_numbers_that_every_rank_has_alike_are_not_named(
    said: Mapping[str, list[str]], name: str
) -> None:
    assert sum("rows alone" in line for line in said[name]) == (name in OWN)
