"""Handwritten digits on a mesh: copies of a model, each of them in stages.

python examples/hybrid.py                        one process
dream run -n 2 examples/hybrid.py                one copy in two stages
dream run -n 4 examples/hybrid.py                two copies of two stages: data 2 x model 2

Copies share each batch out; stages share the layers. hybrid_transformer.py cuts by tensors.
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
with dream.strategy("hybrid", split="pipeline") as strategy:  # data=, model= set the mesh
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
