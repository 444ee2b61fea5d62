"""Handwritten digits, the layers of an MLP in stages along the ranks.

python examples/pipeline_digits.py               one process
dream run -n 2 examples/pipeline_digits.py       the first layers on one rank, the rest on the other

A pipeline owns the step: microbatches of each batch go through the stages one behind the other.
pipeline.py puts a transformer into stages.
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
with dream.strategy("model_parallel", split="pipeline") as strategy:  # stages=["2"] cuts by hand
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = DataLoader(train, batch_size=64, shuffle=True)
    model, optimizer, batches = strategy.prepare(model, optimizer, batches)
    step = strategy.train_step(model, F.cross_entropy, optimizer)

    for _ in range(8):
        for batch in batches:
            loss = step(*batch)

    def right(output, target):
        return (output.argmax(1) == target).float()

    found = strategy.evaluate(model, DataLoader(test, batch_size=64), {"right": right})

every = sum(parameter.numel() for parameter in model.parameters())
held = sum(parameter.numel() for parameter in model.parameters() if not parameter.is_meta)
print(f"loss {float(loss):.3f}, test accuracy {found['right']:.3f}")
print(f"this rank holds {held / every:.2f} of the parameters")
