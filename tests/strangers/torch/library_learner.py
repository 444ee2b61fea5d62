"""A `Learner` of fastai, with its loaders, its schedule of one cycle and mixed-up batches."""

import torch
from fastai.basics import DataLoaders, Learner, accuracy, set_seed
from fastai.callback.schedule import fit_one_cycle  # noqa: F401 - adds the method
from fastai.data.core import DataLoader
from torch import nn
from torch.utils.data import TensorDataset

set_seed(16, reproducible=True)
x, y = torch.randn(53, 6), torch.randint(0, 3, (53,))
train = DataLoader(TensorDataset(x[:43], y[:43]), bs=8, shuffle=True, num_workers=0)
valid = DataLoader(TensorDataset(x[43:], y[43:]), bs=8, num_workers=0)
model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
learner = Learner(
    DataLoaders(train, valid, device=torch.device("cpu")), model,
    loss_func=nn.CrossEntropyLoss(), metrics=accuracy,
)  # fmt: skip
with learner.no_bar(), learner.no_logging():
    learner.fit_one_cycle(3, 1e-2)
history = [float(value) for row in learner.recorder.values for value in row]
models = {"trained": learner.model}
