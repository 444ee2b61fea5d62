"""A loop with torchmetrics' metrics, made where scripts make them, plain and in the block."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import classification

import dream


def figures(plain: bool) -> dict[str, list[float]]:
    """By where the metrics are made, everything that they say, and how often they warn."""
    found = {}
    for place in ("before", "in", "copied"):
        torch.manual_seed(2)
        found[place] = _trained(place, plain)
    return found


def _made() -> Any:
    kinds = {"task": "multiclass", "num_classes": 3}
    return torchmetrics.MetricCollection(
        {
            "confusion": torchmetrics.ConfusionMatrix(**kinds),
            "recall": classification.MulticlassRecall(3, average="macro"),
            "precision": classification.MulticlassPrecision(3, average="macro"),
            "curve": torchmetrics.AUROC(**kinds),
        }
    )


def _trained(place: str, plain: bool) -> list[float]:
    x, y = torch.randn(53, 6), torch.randint(0, 3, (53,))
    metrics, total = _made(), torchmetrics.SumMetric()
    said: list[float] = []
    with nullcontext() if plain else dream.strategy("mirrored"):
        if place == "in":
            metrics, total = _made(), torchmetrics.SumMetric()
        elif place == "copied":
            metrics, total = copy.deepcopy(metrics), pickle.loads(pickle.dumps(total))
        meanwhile = torchmetrics.SumMetric()
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
        test = DataLoader(TensorDataset(x, y), batch_size=9)
        for _ in range(2):
            for step, (inputs, target) in enumerate(loader):
                optimizer.zero_grad()
                out = model(inputs)
                nn.functional.cross_entropy(out, target).backward()
                optimizer.step()
                total(len(target))
                metrics.update(out.detach().softmax(1), target)
                if step == 3:  # in the midst of the pass
                    model.eval()
                    with torch.no_grad():
                        for rows, right in test:
                            meanwhile.update((model(rows).argmax(1) == right).sum())
                    said += _said(meanwhile)
                    model.train()
            said += _said(metrics) + _said(total)
            model.eval()
            for inputs, target in test:
                metrics.update(model(inputs).detach().softmax(1), target)
                total.update(len(target))
            said += _said(metrics) + _said(total)
            model.train()
    return said


def _said(metric: Any) -> list[float]:
    told = metric.compute()
    metric.reset()
    values = told.values() if isinstance(told, dict) else [told]
    return [float(number) for value in values for number in value.reshape(-1)]
