"""Attention over patches in `einops`' words, as layers and in `forward`."""

import torch
from einops import rearrange, reduce, repeat
from einops.layers.torch import Rearrange
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(31)
images = torch.randn(39, 1, 8, 8)
labels = reduce(images[:, 0, :4], "b h w -> b", "sum").gt(0).long()


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in parts)
        weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        mixed = rearrange(self.drop(weights) @ v, "b h n d -> b n (h d)")
        return x + self.out(mixed)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        cut = Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
        self.patches = nn.Sequential(cut, nn.Linear(16, 16))
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.mix, self.head = Attention(16, 2), nn.Linear(16, 2)

    def forward(self, x):
        x = self.patches(x)
        x = torch.cat([repeat(self.token, "1 1 d -> b 1 d", b=len(x)), x], dim=1)
        return self.head(self.mix(x)[:, 0])


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
history = []
for _epoch in range(3):
    for x, y in DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
