"""Batches of two loaders, of other sizes, that a model is called on all at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, cycle
from typing import Any

import loss_scripts
import torch
import torch.nn.functional as F
from constant_scripts import loop
from loss_scripts import CLASSES, WIDTH, Trained, mlp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Join = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def beside_others(model: nn.Module, loss: Loss) -> Trained:
    """Batches of 14, 14 and 9 with targets, beside ones of 26 without; and once of a single row."""
    torch.manual_seed(3)
    others = iter(DataLoader(TensorDataset(torch.randn(8 * 26 + 2, WIDTH)), batch_size=26))
    return loop(model, lambda m, b: loss(m, b[0], b[1], next(others)[0]), epochs=3)


def labels_of_its_own() -> Trained:
    """As FixMatch has it: rows without targets get those that the model is sure of."""

    def loss(m: nn.Module, x: torch.Tensor, y: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        out = m(torch.cat([x, others, -others]))
        first, second = out[len(x) :].chunk(2)
        most, kinds = first.detach().softmax(1).max(1)
        each = F.cross_entropy(second, kinds, reduction="none") * (most > 0.3)
        return F.cross_entropy(out[: len(x)], y) + each.mean()

    return beside_others(mlp(), loss)


def domains_told_apart() -> Trained:
    """As an adversary of domains has it: one model on the rows of both."""

    def loss(m: nn.Module, x: torch.Tensor, y: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        own, theirs = m(torch.cat([x, others])).split([len(x), len(others)])
        return F.cross_entropy(own, y) + F.softplus(theirs).mean()

    return beside_others(mlp(), loss)


def noise_for_the_smaller() -> Trained:
    """Noise is added to rows that are fewer than those of the batch that was read last."""
    torch.manual_seed(3)
    others = iter(DataLoader(TensorDataset(torch.randn(8 * 12, WIDTH)), batch_size=8))

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        x, theirs = b[0], next(others)[0]
        x = x + 0.1 * torch.randn_like(x)
        return F.cross_entropy(m(x), b[1]) + m(theirs).square().mean()

    return loop(mlp(), loss, batch=6, epochs=3)


def one_after_another(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y])


def worked_on(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y]) * 1.5


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """By no function of torch's for that."""
    both = torch.empty(len(x) + len(y), WIDTH)
    both[: len(x)], both[len(x) :] = x, y
    return both


def means_over_each(*, again: bool, join: Join = one_after_another) -> Trained:
    """Batches of 10 of both, whose last ones are of other sizes. again: of kept ones, by turns."""
    torch.manual_seed(3)
    others = DataLoader(TensorDataset(torch.randn(19, WIDTH)), batch_size=10)
    kept = cycle(others) if again else (b for _ in count() for b in others)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        (theirs,) = next(kept)
        out = m(join(b[0], theirs))
        return out[: len(b[0])].square().mean() + out[len(b[0]) :].sigmoid().mean()

    return loop(mlp(), loss, batch=10, epochs=3)


def replayed() -> Trained:
    """Some of the batches until now, the newest among them or not."""
    torch.manual_seed(3)
    past: list[torch.Tensor] = []

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        past.append(b[0])
        out = m(torch.cat([past[-k] for k in (1, 2)[: len(past)]]) / 2)
        return out.square().mean() + m(b[0]).sigmoid().mean()

    return loop(mlp(), loss, batch=10, epochs=3)


def squeezed() -> Trained:
    """Of a share of two rows, half is a number."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return F.mse_loss(m(b[0]).squeeze(), b[2])

    return loop(mlp(1), loss, batch=5)


class Likening(nn.Module):
    """Has each row be of all rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x).tanh()
        return self.head((h @ h.T).softmax(1) @ h)


def likenesses_of_both() -> Trained:
    def loss(m: nn.Module, x: torch.Tensor, y: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(m(torch.cat([x, others]))[: len(x)], y)

    return beside_others(Likening(), loss)


def of_lists() -> Trained:
    """Batches of 5 and of 3 in lists: one rank joins several samples, where another has one."""
    torch.manual_seed(3)
    loader = DataLoader([*torch.randn(13, WIDTH)], batch_size=5, collate_fn=list)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return torch.stack([each.square().sum() for each in m(torch.stack(b))]).mean()

    return loss_scripts.loop(mlp(), loss, loader, epochs=3)


def of_lists_made_anew() -> Trained:
    """Sums over samples in lists: what the last batch joins is of no batch before it."""
    torch.manual_seed(3)
    loader = DataLoader([*torch.randn(13, WIDTH)], batch_size=5, collate_fn=list)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(torch.stack([x * 1.5 for x in b]))
        return sum((each[None].square().mean() for each in out), torch.zeros(()))

    return loss_scripts.loop(mlp(), loss, loader, epochs=3, rate=0.01)


TOGETHER = {
    "of_lists_made_anew": of_lists_made_anew,
    "of_lists": of_lists,
    "labels_of_its_own": labels_of_its_own,
    "domains_told_apart": domains_told_apart,
    "noise_for_the_smaller": noise_for_the_smaller,
    "means_over_each": partial(means_over_each, again=False),
    "means_over_each_again": partial(means_over_each, again=True),
    "means_over_each_again_worked_on": partial(means_over_each, again=True, join=worked_on),
    "replayed": replayed,
    "squeezed": squeezed,
}
LIKENED: dict[str, tuple[Callable[[], Trained], str]] = {
    "likenesses_of_both": (likenesses_of_both, "rows, by "),
}
FOUND_LATE = {"means_over_each_written": partial(means_over_each, again=True, join=written)}
"""A first step is taken before it is found what a loss is."""
