"""One process, many devices: a replica on each, the loss computed there too.

python examples/data_parallel.py                 two devices: GPUs, or threads of the CPU

The first half is dream's; the second puts the four primitives together by hand.
"""

from functools import partial

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream
from dream.adapters.pytorch.parallel.replicas.primitives import (
    gather,
    parallel_apply,
    replicate,
    scatter,
)

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels), random_state=0
)
train, test = TensorDataset(x, y), TensorDataset(x_test, y_test)


def right(output, target):
    return (output.argmax(1) == target).float()


with dream.strategy("data_parallel", devices=2) as strategy:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = DataLoader(train, batch_size=64, shuffle=True)
    step = strategy.train_step(model, F.cross_entropy, optimizer)  # the usual loop works as well
    for _ in range(20):
        for x, y in batches:
            loss = step(x.to(strategy.topology.device), y.to(strategy.topology.device))
    found = strategy.evaluate(model, DataLoader(test, 64), {"accuracy": right})

print(f"loss {float(loss):.3f}, test accuracy {found['accuracy']:.3f}")


def loss_of(replica, x, y):
    return F.cross_entropy(replica(x), y)


devices = [torch.device("cpu")] * 2
model = nn.Linear(64, 10)
x, y = train[:100]
replicas = replicate(model, devices)
losses = parallel_apply(
    [partial(loss_of, each) for each in replicas], scatter((x, y), devices), devices
)
gather(losses, devices[0]).mean().backward()  # the gradients are the model's own
print(f"by hand: two losses, and a gradient of norm {model.weight.grad.norm():.3f}")
