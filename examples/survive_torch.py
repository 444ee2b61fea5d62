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
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


def train(result):
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    with dream.strategy() as strategy:
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = DataLoader(digits, batch_size=64, shuffle=True)
        at = strategy.load(model=model, optimizer=optimizer, data=batches)
        step = at.step if at else 0
        for _ in range(at.epoch if at else 0, 10):
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                step += 1
                if step % 30 == 0 and strategy.topology.rank == 0:
                    print(f"step {step} in process {os.getpid()}", flush=True)
                time.sleep(0.005)  # so that there is time to disturb it
        if strategy.topology.rank == 0:
            torch.save(model.state_dict(), result)


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
    run(1, folder / "undisturbed.pt")
    kept = ["--checkpoint", str(folder / "kept"), "--every", "0.1s"]
    result = folder / "result.pt"
    lost = run(2, result, *kept, "--max-restarts", "1", disturb=["rank", "job"])
    print(f"two ranks, one of them lost, both back, then asked to leave: exit code {lost}")
    print(f"one rank, asked to leave: exit code {run(1, result, *kept, disturb=['job'])}")
    fewer = run("1:2", result, *kept, disturb=["rank", "job"])
    print(f"two ranks, one lost for good, the other asked to leave: exit code {fewer}")
    print(f"three ranks, to the end: exit code {run(3, result, *kept)}")
    ends = [torch.load(folder / name) for name in ("undisturbed.pt", "result.pt")]
    apart = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0])
    print(f"the weights differ by {apart:.1e}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as place:
            survive(Path(place))
