"""Keras's `fit` under dream's `mirrored` beside `fit` under raw MirroredStrategy.

TensorFlow allows one such strategy in a process, so each contender has its own; all stay up and
take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from _measure import Times, interleave

KINDS = {"raw MirroredStrategy": "raw", "raw again": "raw", "dream, mirrored": "dream"}
MODELS = {"MLP 784-64-10": 4, "small CNN": 1}
"""How many times longer than a torch block: fit has a cost of its own at each call."""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "KERAS_BACKEND": "tensorflow"}
TRAINER = Path(__file__).with_name("_keras_trainer.py")


def compare(*, rounds: int, steps: int, model: str) -> dict[str, Times]:
    """Seconds per step by model; the first contender is the baseline."""
    tables: dict[str, Times] = {}
    for name, factor in MODELS.items():
        if model in name:
            with ExitStack() as stack:
                blocks = {
                    contender: partial(
                        epoch, stack.enter_context(trainer(kind, name, steps * factor))
                    )
                    for contender, kind in KINDS.items()
                }
                tables[f"Keras fit, {name}"] = interleave(blocks, rounds=rounds, warmup=2)
    return tables


@contextmanager
def trainer(kind: str, model: str, steps: int) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for its turns, and ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, str(TRAINER), kind, model, str(steps)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | QUIET,
    )
    with process:
        yield process


def epoch(process: subprocess.Popen[str]) -> float:
    """Have one epoch trained; the seconds a step took."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"A trainer ended in mid-run. Received: exit code {process.wait()}.")
    return float(answer)
