"""A training that loses a rank, is asked to leave, shrinks and grows, and ends as if nothing had
been. What it takes is one line, `strategy.load`, and `dream run --checkpoint`.

python examples/survive_torch.py                 all of it, and the difference at the end
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


def train(result):
    torch.manual_seed(0)
    points = torch.randn(1797, 64)
    named = TensorDataset(points, (points @ torch.randn(64, 10)).argmax(1))
    with dream.strategy() as strategy:
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = DataLoader(named, batch_size=64, shuffle=True)
        at = strategy.load(model=model, optimizer=optimizer, data=batches)
        step = at.step if at else 0
        for _ in range(at.epoch if at else 0, 3):
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                step += 1
                if step % 20 == 0 and strategy.topology.rank == 0:
                    print(f"step {step} in process {os.getpid()}", flush=True)
                time.sleep(0.005)  # so that there is time to disturb it
        if strategy.topology.rank == 0:
            torch.save(model.state_dict(), result)


def run(ranks, result, *options, disturb=()):
    """Train on so many ranks; return the exit code. disturb: what is ended each time that rank 0
    tells a step: "rank", or the "job", which is asked to leave."""
    disturb = list(disturb)
    command = [sys.executable, "-m", "dream", "run", "-n", str(ranks), *options]
    command += [__file__, str(result)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}  # for however many ranks: those that are left
    # are then forked from the process that the first ones were, which has imported torch
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as job:
        for line in job.stdout:
            if disturb and line.startswith("step"):
                rank = int(line.split()[-1])
                if disturb.pop(0) == "rank":
                    os.kill(rank, signal.SIGKILL)
                else:
                    job.terminate()
    return job.returncode


def survive(folder):
    train(folder / "undisturbed.pt")
    kept = ["--checkpoint", str(folder / "kept")]
    result = folder / "result.pt"
    often = ["--every", "0.1s", "--max-restarts", "1"]
    fewer = run("2:3", result, *kept, *often, disturb=["rank", "rank", "job"])
    print(
        "three ranks: one lost and brought back, one lost for good, the others asked to leave: "
        f"exit code {fewer}"
    )
    print(f"three ranks again, to the end: exit code {run(3, result, *kept)}")
    ends = [torch.load(folder / name) for name in ("undisturbed.pt", "result.pt")]
    apart = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0])
    print(f"the weights differ by {apart:.1e}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as place:
            survive(Path(place))
