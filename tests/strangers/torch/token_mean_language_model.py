"""A small causal transformer; padded positions are left out of the mean over tokens."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(3)
VOCABULARY, LENGTH = 23, 9
lengths = torch.randint(3, LENGTH, (41,))
tokens = torch.randint(1, VOCABULARY, (41, LENGTH))
tokens[torch.arange(LENGTH)[None] >= lengths[:, None]] = 0


class LanguageModel(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.zeros(LENGTH, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight  # tied

    def forward(self, x):
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.head(self.block(self.embed(x) + self.place[: x.shape[1]], src_mask=mask))


model = LanguageModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(tokens, batch_size=8, shuffle=True)
history = []
for _epoch in range(3):
    for batch in loader:
        x, y = batch[:, :-1], batch[:, 1:].clone()
        y[y == 0] = -100
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        history.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
