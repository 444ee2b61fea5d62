"""Distributed SGD by hand: a ring all-reduce of sends and receives, held against dream's own.

dream run -n 2 examples/sgd_by_hand.py           two ranks
dream run -n 3 examples/sgd_by_hand.py           three

No strategy, no block: each rank takes its rows of every batch and adds up gradients with its
neighbours. Twice (N - 1) messages a rank, of a chunk each: 2 (N - 1) / N of the bytes, however
many ranks there are.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import dream

ranks = dream.communicator("gloo", framework="torch")
me, size = ranks.rank, ranks.world_size


def ring(flat: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ranks of a flat tensor."""
    chunks = list(flat.clone().tensor_split(size))
    right, left = (me + 1) % size, (me - 1) % size
    for step in range(2 * (size - 1)):
        out, place = (me - step) % size, (me - step - 1) % size
        coming = ranks.ireceive(left, like=chunks[place])  # at once, so that nobody waits in turn
        ranks.send(chunks[out], to=right)
        came = coming.wait()
        # halfway each chunk's sum is whole at one rank; from then on it is only passed on
        chunks[place] = chunks[place] + came if step < size - 1 else came
    return torch.cat(chunks)


def train(add_up, me: int, size: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for batch in torch.randperm(len(x)).split(64):
            rows = batch.tensor_split(size)[me]
            optimizer.zero_grad()
            # a sum over its own rows, divided by the rows of all: the last batch is uneven
            (F.cross_entropy(model(x[rows]), y[rows], reduction="sum") / len(batch)).backward()
            gradients = [each.grad for each in model.parameters()]
            added = add_up(torch.cat([each.flatten() for each in gradients]))
            for own, part in zip(
                gradients, added.split([g.numel() for g in gradients]), strict=True
            ):
                own.copy_(part.view_as(own))
            optimizer.step()
    return model


def apart(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).abs().max().detach()) for a, b in pairs)


images, labels = load_digits(return_X_y=True)
x, y = torch.from_numpy((images / 16).astype(np.float32)), torch.from_numpy(labels)

by_hand = train(ring, me, size)
by_dream = train(lambda flat: ranks.all_reduce(flat, "sum"), me, size)
plain = train(lambda flat: flat, 0, 1)  # every row, and nobody to add up with
right = (plain(x).argmax(1) == y).float().mean()
if me == 0:
    print(f"accuracy {right:.3f} on one device")
    print(f"the ring by hand: weights at most {apart(by_hand, plain):.1e} from one device's")
    print(f"dream's all_reduce: at most {apart(by_dream, plain):.1e}")
