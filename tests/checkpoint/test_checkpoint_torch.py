"""A training that stops goes on under another strategy and number of ranks, as if it had not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch_scripts import dream

SCRIPT = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import dream

word, folder, until, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
torch.manual_seed(5)
x, y = torch.randn(61, 8), torch.randint(0, 3, (61,))
with dream.strategy(word) as strategy:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 11])
    batches = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    all_of_it = dict(model=model, optimizer=optimizer, scheduler=schedule, data=batches)
    at = strategy.load(folder, **all_of_it)
    step = at.step if at else 0
    while step < until:
        for inputs, target in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), target).backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step in (6, 9):  # of 4 batches to an epoch
                strategy.save(folder, step=step, extra={"word": word}, **all_of_it)
            if step == until:
                break
    state = strategy.full_state(model)
    if strategy.topology.rank == 0:
        with open(out, "w") as file:
            told = {"from": at and [at.step, at.extra["word"], at.facts["world_size"]]}
            json.dump(told | {name: value.tolist() for name, value in state.items()}, file)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "train.py"
    path.write_text(SCRIPT)
    return path


def train(script: Path, word: str, ranks: int, folder: Path, until: int) -> dict[str, Any]:
    out = folder.with_suffix(".json")
    ran = dream("run", "-n", str(ranks), str(script), word, str(folder), str(until), str(out))
    assert ran.returncode == 0, ran.stderr[-3000:]
    told: dict[str, Any] = json.loads(out.read_text())
    return told


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    gaps = [np.abs(np.subtract(one[name], other[name])).max() for name in one if name != "from"]
    return float(max(gaps))


@pytest.fixture(scope="module")
def undisturbed(script: Path) -> dict[str, Any]:
    return train(script, "single", 1, script.with_name("undisturbed"), 14)


pytestmark = pytest.mark.slow
JOURNEYS = [
    pytest.param([("mirrored", 2), ("single", 1), ("sharded", 3)], id="replicas"),
    pytest.param([("sharded", 2), ("horovod", 2), ("mirrored", 3)], id="sharded",
                 marks=pytest.mark.exhaustive),
]  # fmt: skip
"""What other strategies read of `sharded` is in test_going_on."""


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_training_goes_on_elsewhere(
    journey: list[tuple[str, int]], script: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """With dropout, shuffled data, AdamW and a schedule, stopped in mid-epoch."""
    folder = tmp_path / "runs"
    told: dict[str, Any] = {}
    before = None
    for (word, ranks), until in zip(journey, (6, 9, 14), strict=True):
        told = train(script, word, ranks, folder, until)
        assert told["from"] == before
        before = [until, word, ranks]
    assert difference(told, undisturbed) < 1e-6


ANOTHER = """
import sys, torch, dream
with dream.strategy("mirrored") as strategy:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        strategy.load(sys.argv[1], model=model, optimizer=optimizer)
    except dream.ConfigurationError as error:
        print(strategy.topology.rank, error)
    same = all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert same
"""


@pytest.mark.usefixtures("undisturbed")
def test_another_model_is_refused_on_every_rank(script: Path, tmp_path: Path) -> None:
    folder = script.with_name("undisturbed")
    other = tmp_path / "other.py"
    other.write_text(ANOTHER)
    ran = dream("run", "-n", "2", "--all-output", str(other), str(folder))
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = sorted(line for line in ran.stdout.splitlines() if "This checkpoint" in line)
    assert len(lines) == 2
    assert "'3.bias' in it alone" in lines[0]  # files have names in order


ELSEWHERE = """
import sys, torch, dream
with dream.strategy("mirrored") as strategy:
    model = torch.nn.Linear(2, 2)
    try:
        strategy.save(sys.argv[1], step=1, model=model)
    except dream.DreamError as error:
        print(strategy.topology.rank, error)
"""


def test_an_error_of_the_disk_is_every_ranks(tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text(ELSEWHERE)
    file = tmp_path / "file"
    file.touch()
    ran = dream("run", "-n", "2", "--all-output", str(script), str(file))
    assert ran.stdout.count("The checkpoint was not written") == 2, ran.stderr[-2000:]
