"""The embedded tasks of `dream compare` as a PyTorch user writes and trains them: by a loop, or by
explicit steps for strategies that own the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.strategies import spec as specs
from dream.tools.compare import tasks
from dream.tools.compare.meter import Learned, Meter
from dream.tools.compare.settings import TaskJob
from dream.tools.compare.tasks import MOMENTUM, EmbeddedTask, Weights


class MLP(nn.Module):
    """Digits, or a table, by one hidden layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.output(F.relu(self.hidden(x)))
        return result


class CNN(nn.Module):
    """Two convolutions; images come with their channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3)
        self.second = nn.Conv2d(16, 32, 3)
        self.output = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x.movedim(-1, 1)))
        x = F.relu(self.second(x)).movedim(1, -1)
        result: torch.Tensor = self.output(x.flatten(1))
        return result


class Transformer(nn.Module):
    """A transformer of one block: every character sees those before it."""

    def __init__(self) -> None:
        super().__init__()
        width = tasks.TEXT_WIDTH
        self.letters = nn.Embedding(len(tasks.LETTERS), width)
        self.places = nn.Embedding(tasks.TEXT_LENGTH, width)
        self.query, self.key, self.value, self.mixed = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = (
            nn.Linear(width, tasks.TEXT_INNER),
            nn.Linear(tasks.TEXT_INNER, width),
        )
        self.before_attention, self.before_inner, self.before_output = (
            nn.LayerNorm(width) for _ in range(3)
        )
        self.output = nn.Linear(width, len(tasks.LETTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x) + self.places(torch.arange(x.shape[1], device=x.device))
        x = x + self._attention(self.before_attention(x))
        x = x + self.outer(F.gelu(self.inner(self.before_inner(x))))
        result: torch.Tensor = self.output(self.before_output(x))
        return result

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (tasks.TEXT_HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.mixed(seen.transpose(1, 2).flatten(2))
        return result


_NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "digits-mlp": lambda: MLP(64, 32, 10),
    "digits-cnn": CNN,
    "transformer": Transformer,
    "regression": lambda: MLP(10, 32, 1),
}


def build(task: EmbeddedTask, weights: Weights) -> nn.Module:
    """Return the task's network with its first weights."""
    network = _NETWORKS[task.name]()
    network.load_state_dict(
        {
            _torch_name(name): torch.from_numpy(np.ascontiguousarray(_turned(value, name)))
            for name, value in weights.items()
        }
    )
    return network


def parameters(task: EmbeddedTask, state: Mapping[str, NDArray[Any]]) -> Weights:
    """Return every parameter by the task's names, laid out as the task has them. state: as
    full_state gives it."""
    return {
        name: np.ascontiguousarray(_turned_back(state[_torch_name(name)], name))
        for name in task.shapes
    }


def _torch_name(name: str) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{layer}.{'bias' if kind == 'bias' else 'weight'}"


def _turned(value: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a kernel as torch has it: outputs first."""
    if not name.endswith("kernel"):
        return value
    return value.T if value.ndim == 2 else value.transpose(3, 2, 0, 1)


def _turned_back(value: NDArray[Any], name: str) -> NDArray[Any]:
    if not name.endswith("kernel"):
        return value
    return value.T if value.ndim == 2 else value.transpose(2, 3, 1, 0)


def train_by_steps(job: TaskJob, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    task = tasks.find(job.task)
    data = task.load()
    samples = TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y))
    test = TensorDataset(torch.from_numpy(data.x_test), torch.from_numpy(data.y_test))
    with dream.strategy(seed=job.seed) as strategy:
        network = build(task, tasks.first_weights(task, job.seed))
        elements = sum(p.numel() for p in network.parameters())
        momentum = torch.optim.SGD(network.parameters(), lr=task.learning_rate, momentum=MOMENTUM)
        shuffled = DataLoader(samples, batch_size=job.batch_size, shuffle=True)
        model, optimizer, loader = strategy.prepare(network, momentum, shuffled)
        tests = DataLoader(test, batch_size=job.batch_size)
        step = strategy.train_step(model, loss_of(task), optimizer)
        alone = specs.find(strategy.name).update == "asynchronous"
        for _ in range(job.epochs):
            meter.epoch(_epoch(step, loader, job, meter, alone=alone), len(samples))
            with meter.aside():
                told = strategy.evaluate(model, tests, {"score": _score_of(task)})["score"]
            variance = float(data.y_test.var())
            meter.scores.append(1 - told / variance if task.loss == "squares" else told)
        state = strategy.full_state(model)
        staleness = strategy.staleness() if alone else None
    return Learned(
        parameters(task, state),
        strategy.topology,
        None if alone else strategy.communicator,
        batches=lambda: loader,
        gradient=torch.zeros(elements),
        staleness=staleness,
    )


def _epoch(step: Any, loader: Any, job: TaskJob, meter: Meter, *, alone: bool) -> float:
    """Return the mean loss over the samples. alone: a step tells this rank's loss, not that of
    all."""
    total, seen = torch.zeros((), dtype=torch.float64), 0
    samples = len(loader.dataset)
    for number, (x, y) in enumerate(loader):
        meter.begin()
        value = step(x, y)
        meter.step(job.batch_size)
        count = len(y) if alone else min(job.batch_size, samples - number * job.batch_size)
        if count:  # the mean over no sample is nan
            total += value * count
            seen += count
    return float(total) / max(1, seen)


def loss_of(task: EmbeddedTask) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """`loss(output, y)`: the mean over the samples it is given."""
    if task.loss == "squares":
        return F.mse_loss
    return lambda output, y: F.cross_entropy(output.movedim(-1, 1), y)


def _score_of(task: EmbeddedTask) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a value per sample: the share that is right, or the square."""
    if task.loss == "squares":
        return lambda output, y: ((output - y) ** 2).flatten(1).mean(1)
    return lambda output, y: (output.argmax(-1) == y).double().reshape(len(y), -1).mean(1)


_Loader = DataLoader[tuple[torch.Tensor, ...]]


def train(job: TaskJob, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    task = tasks.find(job.task)
    data = task.load()
    samples = TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y))
    test = TensorDataset(torch.from_numpy(data.x_test), torch.from_numpy(data.y_test))
    with dream.strategy(seed=job.seed) as strategy:
        device = strategy.topology.device
        model = build(task, tasks.first_weights(task, job.seed)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate, momentum=MOMENTUM)
        criterion = loss_of(task)
        served = strategy.name == "parameter_server"
        communicator = None if served else strategy.communicator
        loader = DataLoader(samples, batch_size=job.batch_size, shuffle=True)
        tests = DataLoader(test, batch_size=job.batch_size)
        for _ in range(job.epochs):
            sums = torch.zeros(2, dtype=torch.float64, device=device)  # of losses, of samples
            for x, y in loader:
                meter.begin()
                optimizer.zero_grad()
                loss = criterion(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                meter.step(job.batch_size)
                if len(y):  # the mean over no sample is nan
                    sums[0] += loss.detach() * len(y)
                    sums[1] += len(y)
            if communicator is not None:
                sums = communicator.all_reduce(sums, "sum")
            total, count = sums.tolist()  # parts of one model count the same samples
            before = meter.losses[-1] if meter.losses else float("nan")
            meter.epoch(total / count if count else before, len(samples))  # others took its batches
            with meter.aside():
                meter.scores.append(_score(task, model, tests, device))
        state = strategy.full_state(model)
    elements = sum(p.numel() for p in model.parameters())
    return Learned(
        parameters(task, state),
        strategy.topology,
        communicator,
        batches=lambda: loader,
        gradient=torch.zeros(elements, device=device),
    )


def _score(task: EmbeddedTask, model: nn.Module, batches: _Loader, device: str) -> float:
    """Return the share that is right; of squares, the share of the variance that is explained."""
    with torch.no_grad():
        shown = [(model(x.to(device)), y.to(device)) for x, y in batches]
    output, y = (torch.cat(parts) for parts in zip(*shown, strict=True))
    if task.loss == "squares":
        return float(1 - F.mse_loss(output, y) / y.var(correction=0))
    return float((output.argmax(-1) == y).double().mean())
