"""A strategy of one's own, in replicas in step: dream run -n 2 examples/own_strategy.py"""

from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.pytorch.devices import choose
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.parallel.base import Parallelism, Participants, connect
from dream.strategies.registry import register
from dream.strategies.spec import Spec


class Averaged(Parallelism):
    supports = {}  # no option of an update's: they are refused by name
    supports_for = "'averaged'"

    def connect(self) -> Participants:
        return Participants(connect(self.plan)[0], choose(self.plan))

    def subscribe(self, hooks: Hooks) -> None:
        hooks.made("optimizer", self.adopt)

    def adopt(self, optimizer: Optimizer) -> None:
        for parameter in parameters_of(optimizer):  # rank 0's weights start
            parameter.data.copy_(self.world.broadcast(parameter.detach()))
        optimizer.register_step_pre_hook(self.average)

    def average(self, optimizer: Optimizer, *_: Any) -> None:
        weight = self.shares.weight(())  # 0 for a rank without a sample, whose mean is nan
        own = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        sent = [g * weight if weight else torch.zeros_like(g) for g in own]
        for gradient, mean in zip(own, self.world.all_reduce(sent), strict=True):
            gradient.copy_(mean)


register(
    "torch", Spec("averaged", "one sum a step", "data", "synchronous", {"torch": ()}), Averaged
)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(50, 4), torch.randn(50, 1))
    with dream.strategy("averaged"):
        model = nn.Linear(4, 1)
        optimizer = SGD(model.parameters(), 0.1)
        for x, y in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    print(f"weights: {model.weight.detach()}")
