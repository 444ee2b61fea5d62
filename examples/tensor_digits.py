"""Handwritten digits, the layers of an MLP cut over the ranks.

python examples/tensor_digits.py                 one process
dream run -n 2 examples/tensor_digits.py         half of the hidden layer on each rank

The loop is that of digits_torch.py; tensor.py cuts a transformer. Which layers are cut is found in
the model's forward pass; plan={"0": "column", "2": "row"} says the same by hand.
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
with dream.strategy("model_parallel", split="tensor") as strategy:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = DataLoader(train, batch_size=64, shuffle=True)

    for _ in range(5):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 64))

    every = sum(value.size for value in strategy.full_state(model).values())
    held = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel()
               for p in model.parameters())  # fmt: skip

print(f"test accuracy {right / len(test):.3f}")
print(f"this rank holds {held / every:.2f} of the parameters")
