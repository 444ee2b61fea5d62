"""A fit that loses a rank, is asked to leave, shrinks and grows, and ends as if nothing had been.
What it takes is `dream run --checkpoint`; the script says nothing of it.

python examples/survive_keras.py                 all of it, and the difference at the end
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

import dream


class Told(keras.callbacks.Callback):
    """Says how far the fit has come, and leaves time to disturb it."""

    def __init__(self, shown):
        super().__init__()
        self.shown = shown

    def on_train_batch_end(self, batch, logs=None):
        step = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
        if self.shown and step % 20 == 0:
            print(f"step {step} in process {os.getpid()}", flush=True)
        time.sleep(0.005)


def train(result):
    keras.utils.set_random_seed(0)
    draw = np.random.default_rng(0)
    points = draw.standard_normal((1797, 64), dtype="float32")
    labels = (points @ draw.standard_normal((64, 10))).argmax(1)
    with dream.strategy() as strategy:
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(32, "relu"),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.AdamW(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        first = strategy.topology.rank == 0
        model.fit(points, labels, batch_size=64, epochs=4, verbose=0, callbacks=[Told(first)])
        if first:
            np.savez(result, *model.get_weights())


def run(ranks, result, *options, disturb=()):
    """Train on so many ranks; return the exit code. disturb: what is ended each time that rank 0
    tells a step: "rank", or the "job", which is asked to leave."""
    disturb = list(disturb)
    command = ["-m", "dream", "run", "-n", str(ranks), *options, __file__, str(result)]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            if disturb and line.startswith("step"):
                rank = int(line.split()[-1])
                if disturb.pop(0) == "rank":
                    os.kill(rank, signal.SIGKILL)
                else:
                    job.terminate()
    return job.returncode


def survive(folder):
    train(folder / "undisturbed.npz")
    kept = ["--checkpoint", str(folder / "kept"), "--every", "0.1s"]
    result = folder / "result.npz"
    left = run(2, result, *kept, "--max-restarts", "1", disturb=["rank", "job"])
    print(f"two ranks, one of them lost, both back, then asked to leave: exit code {left}")
    print(f"three ranks, to the end: exit code {run(3, result, *kept)}")
    ends = [np.load(folder / name) for name in ("undisturbed.npz", "result.npz")]
    apart = max(float(np.abs(ends[0][name] - ends[1][name]).max()) for name in ends[0].files)
    print(f"the weights differ by {apart:.1e}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as place:
            survive(Path(place))
