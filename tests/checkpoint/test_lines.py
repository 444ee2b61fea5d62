"""A loop that loads nothing is told which lines it lacks, by its own names; with them alone it goes
on, and ends as it would have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dream.adapters.pytorch.checkpoint.unsaved import load_lines

HEAD = """
import json, os, signal, sys
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset
import dream

EPOCHS = 5
steps = 0

def stepped():
    global steps
    steps += 1
    if os.environ.get("DIE_AT") == str(steps) and not os.path.exists(sys.argv[1] + ".died"):
        open(sys.argv[1] + ".died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

def told(*models):
    with open(sys.argv[1], "w") as file:
        json.dump([p.tolist() for m in models for p in m.parameters()], file)

torch.manual_seed(3)
x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
"""
PLAIN = """
with dream.strategy() as run:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    head = net[3]
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
    train = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    tests = DataLoader(TensorDataset(x, y), 20)
    for epoch in range(EPOCHS):
        running = 0.0
        for inputs, target in train:
            opt.zero_grad()
            loss = cross_entropy(net(inputs), target)
            loss.backward()
            opt.step()
            running += loss.item()
            stepped()
        print(f"epoch {epoch}: {running / len(train):.4f}")
        net.eval()
        with torch.no_grad():
            wrong = sum(cross_entropy(net(inputs), target).item() for inputs, target in tests)
        net.train()
        plateau.step(wrong)
    told(net)
"""
ADVERSARIES = """
def main():
    with dream.strategy() as strategy:
        netG, netD = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optG = torch.optim.Adam(netG.parameters(), lr=0.01)
        optD = torch.optim.Adam(netD.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True)
        for epoch in range(EPOCHS):
            for (real,) in loader:
                fake = netG(torch.ones(len(real), 4))
                optD.zero_grad()
                (netD(fake.detach()).square().mean() + (netD(real) - 1).square().mean()).backward()
                optD.step()
                optG.zero_grad()
                (netD(fake) - 1).square().mean().backward()
                optG.step()
                stepped()
        told(netG, netD)

main()
"""
TRAINER = """
class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)

    def one(self, inputs, target):
        self.optimizer.zero_grad()
        self.scaler.scale(cross_entropy(self.model(inputs), target)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, strategy):
        for epoch in range(EPOCHS):
            for inputs, target in self.loader:
                self.one(inputs, target)
                stepped()

with dream.strategy() as strategy:
    model = nn.Linear(6, 3)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                      DataLoader(TensorDataset(x, y), 8, shuffle=True))
    trainer.fit(strategy)
    told(model)
"""
SCRIPTS = {
    "plain": (PLAIN, "run.load(model=net, optimizer=opt, scheduler=plateau, data=train)"),
    "adversaries": (
        ADVERSARIES,
        'strategy.load(model={"netD": netD, "netG": netG}, optimizer={"optG": optG, "optD": optD}, '
        "data=loader)",
    ),
    "trainer": (
        TRAINER,
        "strategy.load(model=self.model, optimizer=self.optimizer, scheduler=self.scaler, "
        "data=self.loader)",
    ),
}


def run(text: str, folder: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(HEAD + text)
    command = [sys.executable, "-m", "dream", "run", "-n", "1", *options, str(script)]
    return subprocess.run(
        [*command, str(folder / "out.json")], capture_output=True, text=True, timeout=150,
        env={**os.environ, **more}, check=False,
    )  # fmt: skip


def weights(folder: Path) -> list[Any]:
    told: list[Any] = json.loads((folder / "out.json").read_text())
    return told


def with_lines(text: str, said: str) -> str:
    """Put what was said before the loop, and its head in the loop's place."""
    load, head = (line.strip() for line in said.splitlines() if line.startswith("    "))
    loop = next(line for line in text.splitlines() if "for epoch in range" in line)
    indent = loop[: len(loop) - len(loop.lstrip())]
    return text.replace(loop, f"{indent}{load}\n{indent}{head.replace('...', 'EPOCHS')}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_lines_are_in_the_words_of_the_script(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, line = SCRIPTS[name]
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path / "out.json")])
    said: list[str] = []
    names: dict[str, Any] = {"__name__": "train"}
    exec(HEAD, names)
    names["stepped"] = lambda: said.append(load_lines())
    exec(text, names)
    assert f"at = {line}\n" in said[0]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_loop_goes_on_with_the_lines_that_it_is_told(name: str, tmp_path: Path) -> None:
    text, line = SCRIPTS[name]
    kept = ["--checkpoint", str(tmp_path / "kept"), "--every", "0.001", "--max-restarts", "2"]
    untouched = run(text, tmp_path, *kept)
    assert untouched.returncode == 0, untouched.stderr
    assert f"at = {line}\n" in untouched.stderr
    expected = weights(tmp_path)
    (tmp_path / "out.json").unlink()
    said = untouched.stderr.partition("keeps nothing of this training")[2]
    killed = run(with_lines(text, said), tmp_path, *kept, DIE_AT="13")
    assert killed.returncode == 0, killed.stderr
    assert "Starting again, 1 of 2" in killed.stderr
    assert "trains on beside what the checkpoint holds" not in killed.stderr
    pairs = zip(weights(tmp_path), expected, strict=True)
    assert max(np.abs(np.subtract(one, other)).max() for one, other in pairs) < 1e-6
