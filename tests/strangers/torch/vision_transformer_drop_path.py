"""A vision transformer with stochastic depth, label smoothing and a schedule by step, AdamW."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(8)


def drop_path(x, p, training):
    if not training:
        return x
    keep = torch.rand((x.shape[0],) + (1,) * (x.dim() - 1), dtype=x.dtype) + (1 - p)
    return x / (1 - p) * keep.floor()


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * d, d)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + drop_path(self.attn(y, y, y, need_weights=False)[0], 0.2, self.training)
        return x + drop_path(self.mlp(self.norm2(x)), 0.2, self.training)


class ViT(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.patches = nn.Conv2d(1, d, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.positions = nn.Parameter(torch.randn(1, 5, d) * 0.02)
        self.blocks = nn.Sequential(Block(d), Block(d))
        self.head = nn.Linear(d, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.blocks(x)[:, 0])


model = ViT()
data = TensorDataset(torch.randn(39, 1, 8, 8), torch.randint(0, 5, (39,)))
loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.1, epochs=4, steps_per_epoch=len(loader)
)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
history = []
for _epoch in range(4):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        history += [loss.item(), scheduler.get_last_lr()[0]]
