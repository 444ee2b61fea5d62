"""A rank: scripts of whose last batch all ranks but one have no row."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dream


def pictures() -> list[torch.Tensor]:
    """As many rows to a sample as its number says."""
    drawn = torch.Generator().manual_seed(3)
    return [torch.randn(1 + at % 3, 4, generator=drawn) for at in range(17)]


def jagged(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(samples, layout=torch.jagged)


def strided(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(samples)


def trained(collate: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(pictures(), batch_size=8, collate_fn=collate):  # type: ignore[arg-type]
        optimizer.zero_grad()
        rows = torch.nested.to_padded_tensor(batch, 0.0)
        (model(rows).square().sum() / 10).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def of_nested() -> float:
    """How far parameters are from those of one device."""
    plain = trained(jagged)
    with dream.strategy("mirrored"):
        made = trained(jagged)
    return max(float((a - b).abs().max()) for a, b in zip(plain, made, strict=True))


def of_nested_without_sizes() -> str:
    return _ended(lambda: trained(strided))


def of_a_number() -> str:
    return _ended(_sum_from_a_number)


def _sum_from_a_number() -> None:
    model = nn.Linear(4, 3)
    data = TensorDataset(torch.randn(17, 4), torch.randint(3, (17,)))
    for x, y in DataLoader(data, batch_size=8):
        loss: Any = 0
        for given, target in zip(model(x), y, strict=True):
            loss = loss + F.cross_entropy(given, target)
        loss.backward()


def _ended(script: Any) -> str:
    try:
        with dream.strategy("mirrored"):
            script()
    except Exception as error:
        return "\n".join([str(error), *getattr(error, "__notes__", ())])
    return ""


def _boxes(at: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """A picture, and what is in it."""
    drawn = torch.Generator().manual_seed(at)
    of = {"boxes": torch.randn(at % 3, 4, generator=drawn), "number": at}
    return torch.randn(4, generator=drawn), of


def _joined(samples: list[Any]) -> tuple[torch.Tensor, list[Any]]:
    return torch.stack([x for x, _ in samples]), [of for _, of in samples]


def _of_boxes() -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data: Any = [_boxes(at) for at in range(17)]
    for pictures, found in DataLoader(data, batch_size=8, collate_fn=_joined):
        wanted = torch.zeros(len(found), 4)
        for at, of in enumerate(found):
            wanted[at] = of["boxes"].sum(0)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(pictures), wanted).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def of_boxes() -> float:
    """How far they are, where a batch has a list with a dict for each sample."""
    plain = _of_boxes()
    with dream.strategy("mirrored"):
        made = _of_boxes()
    return max(float((a - b).abs().max()) for a, b in zip(plain, made, strict=True))
