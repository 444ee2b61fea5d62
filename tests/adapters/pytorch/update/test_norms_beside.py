"""Models in training mode that no backward comes to: their BatchNorms see the global batch."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from beside_plain import hold, in_cells
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

pytestmark = pytest.mark.slow
KINDS = ("copied", "frozen", "itself", "made")


def trained(word: str, kinds: tuple[str, ...] = KINDS) -> dict[str, list[float]]:
    with dream.strategy(word) if word else nullcontext():
        return {kind: learned(kind) for kind in kinds}


def learned(kind: str) -> list[float]:
    """The student's and the teacher's parameters and statistics, summed up, and the next draw."""
    torch.manual_seed(3)
    drop = nn.Dropout(0.0 if kind == "compiled" else 0.2)  # compiled, it would draw by itself
    student, made = (
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), drop, nn.Linear(8, 3))
        for _ in range(2)
    )
    teacher = {"itself": student, "made": made}.get(kind) or copy.deepcopy(student)
    teacher.requires_grad_(kind in ("copied", "itself"))
    if kind == "compiled":
        teacher = torch.compile(teacher)  # type: ignore[assignment]
    if kind == "dropping":
        teacher = torch.compile(teacher, backend="aot_eager")  # type: ignore[assignment]
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            with nullcontext() if kind == "frozen" else torch.no_grad():
                goal = teacher(x + 0.1 * torch.randn(len(x), 6)).softmax(1)
            output = student(x)
            optimizer.zero_grad()
            (F.cross_entropy(output, y) + F.mse_loss(output.softmax(1), goal)).backward()
            optimizer.step()
    sums = [
        float(sum(each.double().abs().sum() for each in model.state_dict().values()))
        for model in (student, teacher)
    ]
    return [*sums, float(torch.rand(()))]


@in_cells
def test_teachers_normalise_by_the_global_batch(word: str, ranks: int) -> None:
    hold(trained, word, ranks=ranks, within=2e-5)


@pytest.mark.exhaustive
def test_a_compiled_teacher_does_too() -> None:
    hold(trained, "mirrored", ("compiled",), ranks=2, within=2e-5)


@pytest.mark.parametrize("word", ["mirrored", "sharded"])
def test_dropout_of_a_compiled_teacher_is_named(
    word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = dream.launch(trained, word, ("dropping",), n=2, framework="torch", timeout=240)
    assert one == other  # what is drawn next, too
    told = capfd.readouterr().err
    assert told.count("is drawn by compiled code: each rank draws its random numbers there") == 1
    assert "all go on as rank 0" not in told
