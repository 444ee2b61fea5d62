"""Augmentation of a batch by `kornia`, in the loop, and as a layer of the model."""

import kornia.augmentation as K
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(15)
images, labels = torch.rand(45, 3, 12, 12), torch.randint(0, 3, (45,))
train = DataLoader(TensorDataset(images, labels), batch_size=12, shuffle=True)


def net(*first):
    return nn.Sequential(*first, nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(600, 3))


def turned():
    return K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5), K.RandomAffine(10.0, p=0.7), K.RandomErasing(p=0.3),
        K.ColorJitter(0.1, 0.1, 0.1, 0.1, p=0.5), data_keys=["input"],
    )  # fmt: skip


augment, history = turned(), []
models = {"in the loop": net(), "in the model": net(turned())}
for name, model in models.items():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for a, b in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(augment(a) if "loop" in name else a), b)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
