"""Images and targets in lists; the model returns a dict of losses, over the boxes found."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(8)


class Boxes(Dataset):
    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            k = int(torch.randint(0, 4, (1,)))
            self.rows.append(
                (
                    torch.randn(3, 8, 8),
                    {
                        "boxes": torch.rand(k, 4),
                        "labels": torch.randint(1, 4, (k,)),
                        "cells": torch.randint(0, 16, (k,)),
                    },
                )
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.cls, self.box = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, images, targets):
        h = self.body(torch.stack(images))
        logits = self.cls(h).flatten(2).transpose(1, 2)
        boxes = self.box(h).flatten(2).transpose(1, 2)
        want = torch.zeros(logits.shape[:2], dtype=torch.long)
        box_loss, num_pos = 0.0, 0
        for i, t in enumerate(targets):
            want[i, t["cells"]] = t["labels"]
            box_loss = box_loss + F.smooth_l1_loss(
                boxes[i, t["cells"]], t["boxes"], reduction="sum"
            )
            num_pos += len(t["boxes"])
        return {
            "loss_classifier": F.cross_entropy(logits.reshape(-1, 4), want.reshape(-1)),
            "loss_box_reg": box_loss / max(1, num_pos),
        }


def collate_fn(batch):
    return tuple(zip(*batch))


model = Detector()
optimizer = torch.optim.SGD(
    [p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9, weight_decay=0.0005
)
lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
data_loader = DataLoader(Boxes(33), batch_size=6, shuffle=True, collate_fn=collate_fn)
history = []
for epoch in range(3):
    model.train()
    warm = None
    if epoch == 0:
        warm = torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=0.1, total_iters=min(1000, len(data_loader) - 1)
        )
    for images, targets in data_loader:
        images = list(images)
        targets = [dict(t.items()) for t in targets]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        if warm is not None:
            warm.step()
        history.append(losses.item())
    lr_scheduler.step()
