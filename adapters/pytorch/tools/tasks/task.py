"""The embedded tasks as a PyTorch user trains them, for `dream compare`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.pytorch.tools.tasks import networks
from dream.adapters.pytorch.tools.tasks.steps import loss_of
from dream.tools.compare import tasks
from dream.tools.compare.meter import Learned, Meter
from dream.tools.compare.settings import Job
from dream.tools.compare.tasks.task import MOMENTUM, Task

_Loader = DataLoader[tuple[torch.Tensor, ...]]


def train(job: Job, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    task = tasks.find(job.task)
    data = task.load()
    samples = TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y))
    test = TensorDataset(torch.from_numpy(data.x_test), torch.from_numpy(data.y_test))
    with dream.strategy(seed=job.seed) as strategy:
        device = strategy.topology.device
        model = networks.build(task, tasks.first_weights(task, job.seed)).to(device)
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
            meter.epoch(total / count if count else float("nan"), len(samples))
            with meter.aside():
                meter.scores.append(_score(task, model, tests, device))
        state = strategy.full_state(model)
    elements = sum(p.numel() for p in model.parameters())
    return Learned(
        networks.parameters(task, state),
        strategy.topology,
        communicator,
        batches=lambda: loader,
        gradient=torch.zeros(elements, device=device),
    )


def _score(task: Task, model: nn.Module, batches: _Loader, device: str) -> float:
    """The share that is right; of squares, the share of the variance that is explained."""
    with torch.no_grad():
        shown = [(model(x.to(device)), y.to(device)) for x, y in batches]
    output, y = (torch.cat(parts) for parts in zip(*shown, strict=True))
    if task.loss == "squares":
        return float(1 - F.mse_loss(output, y) / y.var(correction=0))
    return float((output.argmax(-1) == y).double().mean())
