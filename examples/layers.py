"""The layers of a model on several devices of one process.

python examples/layers.py                        GPUs, or threads of the CPU

Two towers look at the upper and the lower half of a digit at the same time, each on a device of
its own; the head puts together what they saw. With data=2 there are two such rows side by side.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels), random_state=0
)
train, test = TensorDataset(x, y), TensorDataset(x_test, y_test)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.upper = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.lower = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        upper, lower = x.chunk(2, dim=1)
        return self.head(torch.cat([self.upper(upper), self.lower(lower)], dim=1))


place = {"upper": 0, "lower": 1, "head": 1}
with dream.strategy("model_parallel", split="layers", place=place, data=2):
    model = Towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = DataLoader(train, batch_size=64, shuffle=True)

    for _ in range(20):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 64))

print(f"test accuracy {right / len(test):.3f}")
