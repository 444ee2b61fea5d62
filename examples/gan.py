"""A GAN of digits: two models, two optimizers, and each trained against the other in one loop.

python examples/gan.py                           one process
dream run -n 2 examples/gan.py                   the same figures
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream


def is_real(scores: torch.Tensor, answer: float) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, answer))


torch.manual_seed(0)
images, _ = load_digits(return_X_y=True)
x = torch.tensor(images / 8 - 1, dtype=torch.float32)

with dream.strategy("mirrored") as strategy:
    draws = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    judges = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    steps_of_drawing = torch.optim.SGD(draws.parameters(), lr=0.1, momentum=0.5)
    steps_of_judging = torch.optim.SGD(judges.parameters(), lr=0.1, momentum=0.5)
    batches = DataLoader(TensorDataset(x), batch_size=64, shuffle=True)

    for epoch in range(4):
        for (real,) in batches:
            steps_of_judging.zero_grad()
            made = draws(torch.randn(len(real), 16))
            judged = is_real(judges(real), 1) + is_real(judges(made.detach()), 0)
            judged.backward()
            steps_of_judging.step()

            steps_of_drawing.zero_grad()
            drawn = is_real(judges(draws(torch.randn(len(real), 16))), 1)
            drawn.backward()
            steps_of_drawing.step()
        if strategy.topology.rank == 0:
            print(f"epoch {epoch + 1}: loss of judging {float(judged.detach()):.4f}, "
                  f"loss of drawing {float(drawn.detach()):.4f}")  # fmt: skip
