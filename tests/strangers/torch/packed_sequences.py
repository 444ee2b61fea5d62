"""Sentences of different lengths, packed for an LSTM whose last state is classified."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(32)
sentences = [torch.randint(1, 20, (int(n),)) for n in torch.randint(2, 11, (46,))]
data = [(s, int(s.sum()) % 3) for s in sentences]


def collate(batch):
    words, labels = zip(*batch)
    lengths = torch.tensor([len(w) for w in words])
    return pad_sequence(words, batch_first=True), lengths, torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 10, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(20, 3)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(
            self.embedding(words), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.fc(torch.cat([hidden[-2], hidden[-1]], dim=1))


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
history = []
for _epoch in range(3):
    for words, lengths, labels in DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words, lengths), labels)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
