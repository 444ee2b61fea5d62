"""A batch sampler of the script's own: samples of like length together, batches of any size."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler


class Buckets(Sampler):
    def __init__(self, lengths, size):
        super().__init__()
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = [order[i : i + size] for i in range(0, len(order), size)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        random.shuffle(self.batches)
        return iter(self.batches)


random.seed(64)
torch.manual_seed(64)
lengths = [random.randint(2, 9) for _ in range(41)]
data = [(torch.randn(n, 3), torch.tensor(float(n > 5))) for n in lengths]


def collate(batch):
    series, labels = zip(*batch)
    lengths = torch.tensor([len(s) for s in series])
    return nn.utils.rnn.pad_sequence(series), lengths, torch.stack(labels)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.RNN(3, 8), nn.Linear(8, 1)

    def forward(self, x, lengths):
        states, _ = self.rnn(x)
        last = states[lengths - 1, torch.arange(x.shape[1])]
        return self.out(last).squeeze(1)


loader = DataLoader(data, batch_sampler=Buckets(lengths, 7), collate_fn=collate)
model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
history = []
for _epoch in range(3):
    for x, n, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x, n), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
