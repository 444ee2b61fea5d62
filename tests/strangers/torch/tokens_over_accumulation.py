"""Micro-batches of one update are fetched first; their losses are summed over all their tokens."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(5)


class Texts(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.items = [
            torch.randint(1, 20, (int(torch.randint(3, 9, (1,), generator=g)),), generator=g)
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return {"input_ids": self.items[i]}


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.zeros(len(features), longest, dtype=torch.long)
    labels = torch.full((len(features), longest), -100)
    for i, f in enumerate(features):
        ids[i, : len(f["input_ids"])] = f["input_ids"]
        labels[i, : len(f["input_ids"])] = f["input_ids"]
    return {"input_ids": ids, "labels": labels}


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 12)
        self.gru = nn.GRU(12, 16, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, input_ids, labels=None):
        h, _ = self.gru(self.emb(input_ids))
        return self.head(h)


model = LM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
loader = DataLoader(Texts(41), batch_size=5, shuffle=True, collate_fn=collate)
accum, history = 3, []
for _epoch in range(2):
    it = iter(loader)
    steps = (len(loader) + accum - 1) // accum
    for _step in range(steps):
        batches = []
        for _ in range(accum):
            try:
                batches.append(next(it))
            except StopIteration:
                break
        num_items = sum((b["labels"][:, 1:] != -100).sum() for b in batches)
        total = 0.0
        for b in batches:
            logits = model(b["input_ids"])
            loss = F.cross_entropy(
                logits[:, :-1].reshape(-1, 20),
                b["labels"][:, 1:].reshape(-1),
                ignore_index=-100,
                reduction="sum",
            )
            loss = loss / num_items
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        history.append(total)
