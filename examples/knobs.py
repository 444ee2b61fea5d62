"""How an update is made, in words: micro-batches, clipping, precision. The loop stays what it was.

python examples/knobs.py                  one process
dream run -n 2 examples/knobs.py          two replicas, the same numbers
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
torch.manual_seed(0)

with dream.strategy(accumulate=4, clip_norm=1.0) as strategy:  # precision="bfloat16" goes along
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = DataLoader(digits, batch_size=64, shuffle=True)
    epochs = 10
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, epochs * len(batches))

    for _ in range(epochs):
        for x, y in batches:  # a quarter of this rank's share at a time
            optimizer.zero_grad()  # these act on every fourth
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()

    figures = strategy.evaluate(
        model, DataLoader(digits, 64), {"accuracy": lambda z, y: (z.argmax(1) == y).float()}
    )

if strategy.topology.rank == 0:
    print(f"updates {schedule.last_epoch}, accuracy {figures['accuracy']:.3f}")
