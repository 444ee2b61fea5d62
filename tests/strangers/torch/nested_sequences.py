"""Sequences of unequal length in one nested tensor, which pads nothing."""

import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
torch.manual_seed(95)
samples = [(torch.randn(2 + i % 5, 4), torch.randn(2)) for i in range(37)]


def collate(batch):
    sequences = torch.nested.nested_tensor([sequence for sequence, _ in batch])
    return sequences, torch.stack([target for _, target in batch])


model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = []
for _epoch in range(2):
    for sequences, targets in DataLoader(samples, batch_size=8, shuffle=True, collate_fn=collate):
        means = torch.stack([sequence.mean(0) for sequence in sequences.unbind()])
        loss = nn.functional.mse_loss(model(means), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
