"""The embedded tasks by explicit steps, for strategies that own the step: pipelines, and workers
that do not wait for one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream import _spec
from dream.adapters.pytorch.tools.tasks import networks
from dream.tools.compare import tasks
from dream.tools.compare.meter import Learned, Meter
from dream.tools.compare.settings import Job
from dream.tools.compare.tasks.task import MOMENTUM, Task


def train(job: Job, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    task = tasks.find(job.task)
    data = task.load()
    samples = TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y))
    test = TensorDataset(torch.from_numpy(data.x_test), torch.from_numpy(data.y_test))
    with dream.strategy(seed=job.seed) as strategy:
        network = networks.build(task, tasks.first_weights(task, job.seed))
        elements = sum(p.numel() for p in network.parameters())
        momentum = torch.optim.SGD(network.parameters(), lr=task.learning_rate, momentum=MOMENTUM)
        shuffled = DataLoader(samples, batch_size=job.batch_size, shuffle=True)
        model, optimizer, loader = strategy.prepare(network, momentum, shuffled)
        tests = DataLoader(test, batch_size=job.batch_size)
        step = strategy.train_step(model, loss_of(task), optimizer)
        alone = _spec.find(strategy.name).update == "asynchronous"
        for _ in range(job.epochs):
            meter.epoch(_epoch(step, loader, job, meter, alone=alone), len(samples))
            with meter.aside():
                told = strategy.evaluate(model, tests, {"score": _score_of(task)})["score"]
            variance = float(data.y_test.var())
            meter.scores.append(1 - told / variance if task.loss == "squares" else told)
        state = strategy.full_state(model)
        staleness = strategy.staleness() if alone else None
    return Learned(
        networks.parameters(task, state),
        strategy.topology,
        None if alone else strategy.communicator,
        batches=lambda: loader,
        gradient=torch.zeros(elements),
        staleness=staleness,
    )


def _epoch(step: Any, loader: Any, job: Job, meter: Meter, *, alone: bool) -> float:
    """The mean loss over the samples. alone: a step tells this rank's loss, not that of all."""
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


def loss_of(task: Task) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """`loss(output, y)`: the mean over the samples it is given."""
    if task.loss == "squares":
        return F.mse_loss
    return lambda output, y: F.cross_entropy(output.movedim(-1, 1), y)


def _score_of(task: Task) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A value per sample: the share that is right, or the square."""
    if task.loss == "squares":
        return lambda output, y: ((output - y) ** 2).flatten(1).mean(1)
    return lambda output, y: (output.argmax(-1) == y).double().reshape(len(y), -1).mean(1)
