"""Texts as one long list with offsets, as for an embedding bag; length, not rows, is dim 0."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(129)
texts = [(torch.randint(0, 20, (int(n),)), int(n) % 3) for n in torch.randint(1, 9, (43,))]


def collate(batch):
    labels = torch.tensor([label for _, label in batch])
    offsets = torch.tensor([0] + [len(text) for text, _ in batch[:-1]]).cumsum(0)
    return labels, torch.cat([text for text, _ in batch]), offsets


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(8, 3)

    def forward(self, text, offsets):
        return self.out(self.bag(text, offsets))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
history = []
for _epoch in range(3):
    for label, text, offsets in DataLoader(texts, batch_size=8, shuffle=True, collate_fn=collate):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(text, offsets), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        history.append(loss.item())
    scheduler.step()
