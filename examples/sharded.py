"""Handwritten digits, every parameter, gradient and moment of Adam in shards, one a rank.

python examples/sharded.py                       one process, which holds everything
dream run -n 2 examples/sharded.py               each rank holds half, and the result is the same
dream run -n 4 --strategy sharded:data=2 examples/sharded.py     two groups of two shards each

The loop is that of digits_torch.py; one word is another. A model that does not fit one rank is
made on the meta device, and gets its memory as it is split.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels), random_state=0
)
train, test = TensorDataset(x, y), TensorDataset(x_test, y_test)

torch.manual_seed(0)
with dream.strategy("sharded") as strategy:  # zero=2: whole in a step; zero=1: state only
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = DataLoader(train, batch_size=64, shuffle=True)

    for _ in range(5):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 64))

    whole = strategy.full_state(model)
    tensors = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
    held = sum(t.to_local().numel() if hasattr(t, "to_local") else t.numel() for t in tensors)
    every = 3 * sum(value.size for value in whole.values())

print(f"test accuracy {right / len(test):.3f}")
print(f"this rank holds {held / every:.2f} of parameters and moments")
