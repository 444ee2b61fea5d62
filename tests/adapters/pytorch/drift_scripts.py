"""Loops whose replicas part, each in its way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.pytorch import drift


class Net(nn.Module):
    """moves: whether forward changes a buffer by what it sees."""

    def __init__(self, *, moves: bool = False) -> None:
        super().__init__()
        self.moves = moves
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("fixed", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.moves and self.training and len(x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        output: torch.Tensor = self.last(torch.relu(self.first(x - self.mean)))
        return output


Act = Callable[[int, int, nn.Module, torch.optim.Optimizer], None]


def nothing(*_: Any) -> None:
    """All is well."""


def train(
    act: Act, *, moves: bool = False, epochs: int = 2, of_rank: float = 0.0
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1600, 4), torch.randn(1600, 1))
    model = Net(moves=moves)
    current = dream.current()
    assert current is not None
    rank = current.topology.rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (1 + rank * of_rank))
    step = 0
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=16):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            act(rank, step, model, optimizer)
    return model, optimizer


def all_is_well() -> int:
    """How many steps there are between two comparisons in the end."""
    _, optimizer = train(nothing, epochs=4)
    (countdown,) = [
        hook
        for hook in optimizer._optimizer_step_pre_hooks.values()
        if isinstance(hook, drift._Countdown)
    ]
    return countdown._pace._last


def rate_by_rank() -> None:
    train(nothing, of_rank=0.5)


def schedule_on_a_local_figure() -> None:
    def act(rank: int, step: int, _: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if rank == 1 and step == 20:
            optimizer.param_groups[0]["lr"] /= 2

    train(act)


def rate_that_parts_late() -> int:
    """The last step before it is found, where it parts after step 77."""
    reached = 0

    def act(rank: int, step: int, _: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nonlocal reached
        reached = step
        if rank == 1 and step == 77:
            optimizer.param_groups[0]["lr"] /= 2

    try:
        train(act)
    except dream.Desynchronized:
        return reached
    return -1


def weight_touched_on_one_rank() -> None:
    def act(rank: int, step: int, model: Any, _: torch.optim.Optimizer) -> None:
        if rank == 1 and step == 20:
            with torch.no_grad():
                model.last.bias.add_(1e-6)

    train(act)


def batch_left_out_by_its_own_loss() -> None:
    """Each rank leaves out as many, at another time, so that none waits for the others."""
    current = dream.current()
    assert current is not None
    out = 20 + 2 * current.topology.rank
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.ones(800, 4), torch.ones(800, 1))
    for step, (x, y) in enumerate(DataLoader(data, batch_size=16)):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        if step == out:
            continue
        loss.backward()
        optimizer.step()


def leave_out(*at: int) -> None:
    """The last rank takes no steps there, as by `if grad_norm * len(x) > 2`."""
    current = dream.current()
    assert current is not None
    last = current.topology.rank == current.topology.world_size - 1
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.ones(800, 4), torch.ones(800, 1))
    for step, (x, y) in enumerate(DataLoader(data, batch_size=16), 1):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step > at[-1] + 1:
            raise AssertionError(f"nobody has told of it before step {step}")
        if not last or step not in at:
            optimizer.step()


def early_steps_left_out_by_one_rank() -> None:
    leave_out(2, 3)


def late_step_left_out_by_one_rank() -> None:
    leave_out(21)


def not_a_number_everywhere() -> str:
    def act(rank: int, step: int, model: Any, _: torch.optim.Optimizer) -> None:
        if step == 3:
            bits = torch.tensor([0x7FC00000 + rank], dtype=torch.int32)
            model.last.bias.data.copy_(bits.view(torch.float32))

    train(act)
    return "well"


def buffer_in_half_precision() -> tuple[list[float], list[str]]:
    """Where an optimizer steps other weights than the model's."""
    strategy = dream.current()
    assert strategy is not None
    torch.manual_seed(0)
    model = Net(moves=True)
    step = strategy.train_step(
        model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.01)
    )
    with hearing() as heard:
        for x, y in DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8):
            step(x, y)
    return model.mean.tolist(), heard  # type: ignore[operator, union-attr]


@contextmanager
def hearing() -> Iterator[list[str]]:
    """What is said inside of the buffer."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dream").addHandler(handler)
    yield heard
    logging.getLogger("dream").removeHandler(handler)
    heard[:] = [line for line in heard if "mean of Net" in line]


def buffer_that_forward_changes() -> tuple[list[float], list[str]]:
    with hearing() as heard:
        model, _ = train(nothing, moves=True)
    return model.mean.tolist(), heard  # type: ignore[operator, union-attr]


SCRIPTS = (all_is_well, not_a_number_everywhere, buffer_that_forward_changes,
           buffer_in_half_precision, rate_by_rank,
           schedule_on_a_local_figure, rate_that_parts_late, batch_left_out_by_its_own_loss,
           early_steps_left_out_by_one_rank, late_step_left_out_by_one_rank,
           weight_touched_on_one_rank)  # fmt: skip


PRECISION = {"buffer_in_half_precision": "O2"}


def run_all() -> dict[str, Any]:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for script in SCRIPTS:
        try:
            with dream.strategy("mirrored", precision=PRECISION.get(script.__name__, "float32")):
                found[script.__name__] = script()
        except dream.DreamError as error:
            found[script.__name__] = f"{type(error).__name__}: {error}"
    return found
