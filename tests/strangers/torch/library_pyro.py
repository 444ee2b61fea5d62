"""Stochastic variational inference by `pyro`, whose parameters lie in a store of its own."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule, PyroSample
from pyro.optim import Adam
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pyro.set_rng_seed(4)
pyro.clear_param_store()
x = torch.randn(43, 3)
y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(43)


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

    def forward(self, x, y=None):
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", size=43, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(mean, 0.1), obs=y)
        return mean


model = Regression()
guide = AutoNormal(model)
svi = SVI(model, guide, Adam({"lr": 0.03}), loss=Trace_ELBO())
history = []
for _ in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        history.append(svi.step(a, b))
models = {"guide": guide}
