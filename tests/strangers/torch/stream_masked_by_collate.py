"""A stream of sentences; the collate function pads them, and draws the words to be guessed."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.manual_seed(4)


class Sentences(IterableDataset):
    def __iter__(self):
        source = torch.Generator().manual_seed(12)
        for _ in range(41):
            length = int(torch.randint(3, 9, (), generator=source))
            yield torch.randint(1, 20, (length,), generator=source)


def collate(batch):
    words = nn.utils.rnn.pad_sequence(batch, batch_first=True)
    hidden = (torch.rand(words.shape) < 0.3) & (words > 0)
    return words.masked_fill(hidden, 20), words.masked_fill(~hidden, -100)


model = nn.Sequential(nn.Embedding(21, 12), nn.Linear(12, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
history = []
for _epoch in range(2):
    for words, labels in DataLoader(Sentences(), batch_size=8, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(words).view(-1, 20), labels.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
