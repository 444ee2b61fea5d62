"""What it costs a step to be recorded, as `dream verify` and `dream compare SCRIPT` record it.

python benchmarks/recording.py            both frameworks
python benchmarks/recording.py torch --steps 500 --rounds 5

The same loop runs in processes of its own, recorded and not, in turns; the medians of the rounds
are told. Where nothing is verified no hook is in a step: what is asked is asked once, when a step
is made and a block entered.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

import dream
from dream.launch import start
from dream.launch.ending import explain
from dream.launch.job import Job
from dream.strategies.spec import Framework
from dream.tools.record import RecordRequest

WARM = 50


def torch_steps(steps: int) -> list[float]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(1)
    with dream.strategy("single"):
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
        clocks = []
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            clocks.append(perf_counter())
    return clocks


def keras_steps(steps: int) -> list[float]:
    import keras

    clocks: list[float] = []

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            del batch, logs
            clocks.append(perf_counter())

    with dream.strategy("single"):
        layers = [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential(layers)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = np.ones((64 * steps, 64), "float32"), np.zeros(64 * steps, "int32")
        model.fit(x, y, batch_size=64, verbose=0, callbacks=[Clock()])
    return clocks


LOOPS = {"torch": torch_steps, "keras": keras_steps}


def microseconds(clocks: list[float]) -> float:
    """Of a step, the mean after the first ones."""
    return (clocks[-1] - clocks[WARM]) / (len(clocks) - 1 - WARM) * 1e6


def measured(loop: str, steps: int, *, recorded: bool) -> float:
    with tempfile.TemporaryDirectory() as name:
        told = Path(name) / "told"
        command = ("script", __file__, loop, "--steps", str(steps), "--into", str(told))
        framework: Framework = "torch" if loop == "torch" else "tensorflow"
        job = Job(command, 1, frameworks=(framework,), show="none")
        if recorded:
            asked = RecordRequest(Path(name), 2**62).environ
            job = replace(job, environ={**job.environ, **asked})
        ended = start.run(job)
        if ended.exit_code != 0:
            raise SystemExit(explain(ended))
        return float(told.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("loops", nargs="*", default=list(LOOPS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path)
    given = parser.parse_args()
    if given.into:
        given.into.write_text(str(microseconds(LOOPS[given.loops[0]](given.steps))))
        return
    for loop in given.loops:
        rounds = [
            [measured(loop, given.steps, recorded=recorded) for recorded in (False, True)]
            for _ in range(given.rounds)
        ]
        plain, recorded = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(
            f"{loop}: {plain:.0f} us a step, recorded {recorded:.0f} us "
            f"({recorded - plain:+.0f} us; rounds {rounds})"
        )


if __name__ == "__main__":
    main()
