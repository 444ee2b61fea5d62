"""Images and texts that belong together; all others of the batch are negatives."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(8, 4), nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, text):
        image = F.normalize(self.image(image), dim=-1)
        text = F.normalize(self.text(text), dim=-1)
        return image, text, self.scale.exp()


torch.manual_seed(16)
data = TensorDataset(torch.randn(45, 8), torch.randn(45, 5))
model = TwoTowers()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _epoch in range(3):
    for image, text in DataLoader(data, batch_size=9, shuffle=True):
        one, two, scale = model(image, text)
        logits = scale * one @ two.t()
        labels = torch.arange(len(image))
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
