"""Sequence to sequence: an encoder, a decoder that is shown the truth half of the time."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(6)
torch.manual_seed(6)
source = torch.randint(1, 12, (37, 6))
target = source.flip(1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(12, 8), nn.GRU(8, 12, batch_first=True)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.gru(self.dropout(self.embedding(x)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(12, 8), nn.GRUCell(8, 12)
        self.out = nn.Linear(12, 12)

    def forward(self, word, hidden):
        hidden = self.cell(self.embedding(word).relu(), hidden)
        return self.out(hidden), hidden


encoder, decoder = Encoder(), Decoder()
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (encoder, decoder)]
criterion = nn.CrossEntropyLoss()
history = []
for _epoch in range(3):
    for x, y in DataLoader(TensorDataset(source, target), batch_size=8, shuffle=True):
        for optimizer in optimizers:
            optimizer.zero_grad()
        _, hidden = encoder(x)
        hidden, word, loss = hidden[0], torch.zeros(len(x), dtype=torch.long), 0.0
        forced = random.random() < 0.5
        for step in range(y.shape[1]):
            logits, hidden = decoder(word, hidden)
            loss = loss + criterion(logits, y[:, step])
            word = y[:, step] if forced else logits.argmax(1).detach()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        history.append(loss.item() / y.shape[1])
models = {"encoder": encoder, "decoder": decoder}
