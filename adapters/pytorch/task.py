"""The embedded digits task as a PyTorch user writes it, for `dream compare`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.compare import digits as task
from dream.compare.meter import Learned, Meter
from dream.compare.settings import Job


class Network(nn.Module):
    """64-32-10, its first weights given."""

    def __init__(self, weights: task.Weights) -> None:
        super().__init__()
        self.hidden = nn.Linear(*task.LAYERS["hidden"])
        self.output = nn.Linear(*task.LAYERS["output"])
        self.load_state_dict(
            {_torch_name(name): torch.from_numpy(value.T) for name, value in weights.items()}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(F.relu(self.hidden(x)))
        return logits


def digits(job: Job, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    data = task.load()
    train = TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y))
    test = TensorDataset(torch.from_numpy(data.x_test), torch.from_numpy(data.y_test))
    with dream.strategy(seed=job.seed) as strategy:
        device = strategy.topology.device
        model = Network(task.first_weights(job.seed)).to(device)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=task.LEARNING_RATE, momentum=task.MOMENTUM
        )
        loader = DataLoader(train, batch_size=job.batch_size, shuffle=True)
        for _ in range(job.epochs):
            total = torch.zeros((), dtype=torch.float64, device=device)
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                meter.step(job.batch_size)
                if len(y):  # the mean over no sample is nan
                    total += loss.detach() * len(y)
            total = strategy.communicator.all_reduce(total, "sum")
            meter.epoch(float(total) / len(train), len(train))
        accuracy = _accuracy(model, DataLoader(test, batch_size=job.batch_size), device)
    return Learned(_parameters(model), accuracy, strategy.topology, strategy.communicator.reduction)


def _accuracy(
    model: nn.Module, batches: DataLoader[tuple[torch.Tensor, ...]], device: str
) -> float:
    right = seen = 0
    with torch.no_grad():
        for x, y in batches:
            right += int((model(x.to(device)).argmax(1) == y.to(device)).sum())
            seen += len(y)
    return right / seen


def _torch_name(name: str) -> str:
    return name.replace("kernel", "weight")


def _parameters(model: nn.Module) -> task.Weights:
    return {
        name.replace("weight", "kernel"): value.detach().cpu().numpy().T.copy()
        for name, value in model.named_parameters()
    }
