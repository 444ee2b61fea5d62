"""An encoder that guesses masked words; which are masked is drawn anew for every batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader

WORDS, MASK, PAD = 30, 1, 0
torch.manual_seed(5)
corpus = torch.randint(2, WORDS, (45, 10))
for row, length in enumerate(torch.randint(5, 11, (45,))):
    corpus[row, length:] = PAD


class Encoder(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.words = nn.Embedding(WORDS, d, padding_idx=PAD)
        self.positions = nn.Embedding(10, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.decoder = nn.Linear(d, WORDS)

    def forward(self, ids):
        h = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        h = self.layers(h, src_key_padding_mask=ids == PAD)
        return self.decoder(self.norm(h))


def mask_words(ids):
    labels = ids.clone()
    chance = torch.full(labels.shape, 0.3).masked_fill(labels == PAD, 0.0)
    chosen = torch.bernoulli(chance).bool()
    labels[~chosen] = -100
    return ids.masked_fill(chosen, MASK), labels


model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()  # leaves out -100
history = []
model.train()
for _epoch in range(3):
    for ids in DataLoader(corpus, batch_size=8, shuffle=True):
        inputs, labels = mask_words(ids)
        loss = criterion(model(inputs).view(-1, WORDS), labels.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
