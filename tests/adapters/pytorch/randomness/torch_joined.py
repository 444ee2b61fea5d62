"""Models that are called on views of a batch, or on batches of two loaders, that were joined; and
models in which a sample's rows lie apart. Each draws, in the block and without it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

Step = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


class Siamese(nn.Module):
    """Joins two inputs itself, and draws for each of them later."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Dropout(0.3), nn.Linear(12, 8), nn.Tanh(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one, two = self.head(self.trunk(torch.cat([a, b]))).chunk(2)
        return F.dropout(one, 0.2, self.training), two


class HeadsFirst(nn.Module):
    """Attention whose heads lie before the samples, and steps of time that do."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 8) for _ in range(3))
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = len(x)

        def heads(layer: nn.Module) -> torch.Tensor:
            made: torch.Tensor = layer(x.view(n, 3, 4)).view(n, 3, 2, 4).permute(2, 0, 1, 3)
            return made.reshape(-1, 3, 4)

        weights = (heads(self.query) @ heads(self.key).transpose(1, 2)).softmax(-1)
        mixed = F.dropout(weights, 0.2, self.training) @ heads(self.value)
        steps = mixed.view(2, n, 3, 4).permute(2, 1, 0, 3).reshape(3, n, 8)
        flat = F.dropout(steps.tanh().reshape(-1, 8), 0.2, self.training)
        found: torch.Tensor = self.last(flat).view(3, n, 3).mean(0)
        return found


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def two_nets() -> nn.Module:
    second = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 3))
    return nn.ModuleList([net(), second])


def views(join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Step:
    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        joined = join(x, x.flip(1))
        return F.cross_entropy(model(joined), y.repeat(len(joined) // max(len(y), 1) or 2))

    return step


def noisy(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    joined = F.dropout(torch.cat([x, x.flip(1)]), 0.1)
    joined = joined + 0.1 * torch.randn_like(joined) + 0.1 * torch.randn(len(joined), 1)
    return F.cross_entropy(model((joined * 2).clamp(-1, 1)), torch.cat([y, y]))


def noisy_by_shape(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What is added is known by its size alone."""
    joined = torch.cat([x, x.flip(1)])
    joined = joined + 0.1 * torch.randn(joined.shape, device=joined.device)
    return F.cross_entropy(model(joined), torch.cat([y, y]))


def side_by_side(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A sample's views lie together; features are joined view after view later."""
    out = model(torch.stack([x, x.flip(1)], 1).view(-1, 12))
    loss = F.cross_entropy(torch.cat(out.view(-1, 2, 3).unbind(1)), torch.cat([y, y]))
    turned = torch.stack([x * 2, x.flip(1)]).transpose(0, 1).flatten(0, 1)
    return loss + F.cross_entropy(model(turned), y.repeat_interleave(2))


def sorted_by_sample(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Views are joined, and then put beside each other, sample by sample."""
    order = torch.arange(2 * len(x)).view(2, -1).t().reshape(-1)
    out = model(torch.cat([x, x.flip(1)])[order])
    return F.cross_entropy(out, torch.cat([y, y])[order])


def in_both_orders(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two models, of which one is called on patches and one on views, as many."""
    patches = F.cross_entropy(model[0](x.repeat_interleave(2, 0)), y.repeat_interleave(2))
    views = model[1](torch.cat([x[:, :3], x[:, 3:6]]))
    return patches + F.cross_entropy(views, torch.cat([y, y]))


def siamese(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    one, two = model(x, x.flip(1))
    return F.cross_entropy(one, y) + F.cross_entropy(two, y)


def chained(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model[1](model[0](torch.cat([x, x.flip(1)]))), torch.cat([y, y]))


def written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """View after view, into an empty tensor."""
    made, n = torch.empty(2 * len(a), 12), len(a)
    made[:n] = a
    made[n:].copy_(b)
    return made


def written_by_turns(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A sample's views beside each other."""
    made = x.new_zeros(2 * len(x), 12)
    made[::2], made[1::2] = x, x.flip(1)
    return F.cross_entropy(model(made), y.repeat_interleave(2))


def taken_by_turns(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    numbers = torch.arange(len(x)).repeat_interleave(2)
    return F.cross_entropy(model(x[numbers]), y[numbers])


FORMS: dict[str, tuple[Callable[[], nn.Module], Step]] = {
    "cat": (net, views(lambda a, b: torch.cat([a, b]))),
    "vstack": (net, views(lambda a, b: torch.vstack((a, b, a * 2)))),
    "stack": (net, views(lambda a, b: torch.stack([a, b]).flatten(0, 1))),
    "stack_scaled": (net, views(lambda a, b: 2 * torch.stack([a, b]).flatten(0, 1))),
    "repeat": (net, views(lambda a, _: a.repeat(2, 1) + 0.1 * torch.arange(12))),
    "expand": (net, views(lambda a, _: a.expand(2, -1, -1).reshape(-1, 12))),
    "expand_of_all": (net, views(lambda a, _: a[None].expand(2, -1, -1).reshape(-1, 12))),
    "repeat_of_all": (net, views(lambda a, _: a.unsqueeze(0).repeat(2, 1, 1).view(-1, 12))),
    "by_number": (net, views(lambda a, _: a[torch.arange(len(a)).repeat(2)])),
    "selected": (net, views(lambda a, _: a.index_select(0, torch.arange(len(a)).repeat(3)))),
    "by_turns": (net, taken_by_turns),
    "written": (net, views(written)),
    "written_by_turns": (net, written_by_turns),
    "noisy": (net, noisy),
    "noisy_by_shape": (net, noisy_by_shape),
    "side_by_side": (net, side_by_side),
    "sorted_by_sample": (net, sorted_by_sample),
    "in_both_orders": (two_nets, in_both_orders),
    "siamese": (Siamese, siamese),
    "chained": (two_nets, chained),
    "heads_first": (HeadsFirst, lambda m, x, y: F.cross_entropy(m(x), y)),
    "heads_first_views": (HeadsFirst, views(lambda a, b: torch.cat([a, b]))),
}


def data(rows: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(rows)
    return TensorDataset(
        torch.randn(rows, 12, generator=draw), torch.randint(3, (rows,), generator=draw)
    )


def train(form: str, *, kept: bool = False, block: Any = nullcontext) -> np.ndarray:
    """kept: the batches lie in a list."""
    torch.manual_seed(3)
    make, step = FORMS[form]
    with block():
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader: Any = DataLoader(data(34), 16)
        loader = list(loader) if kept else loader
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                step(model, x, y).backward()
                optimizer.step()
    return flat(model)


def labelled_and_not(*, block: Any = nullcontext) -> np.ndarray:
    """A model that is called on two loaders' batches at once, and on noise; and what is drawn for
    the one that was read first."""
    torch.manual_seed(3)
    with block():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        one, two = DataLoader(data(34), 16, shuffle=True), DataLoader(data(90), 24, shuffle=True)
        for _ in range(3):
            for (x, y), (u, _) in zip(one, two, strict=False):
                noise = torch.randn(len(x), 12)
                out = model(torch.cat([x + 0.1 * noise, u, u.flip(1)]))
                weak, strong = out[len(x) :].chunk(2)
                loss = F.cross_entropy(out[: len(x)], y)
                loss = loss + F.cross_entropy(strong, weak.detach().argmax(-1))
                real, made = model(torch.cat([x, noise])).chunk(2)
                loss = loss + F.softplus(-real).mean() + F.softplus(made).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return flat(model)


def two_domains(*, block: Any = nullcontext) -> np.ndarray:
    """A model that the loop calls part by part, the dropout by itself. The last
    batches are as large on a rank as halves of the first."""
    torch.manual_seed(3)
    with block():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        one, two = DataLoader(data(50), 16, shuffle=True), DataLoader(data(90), 24, shuffle=True)
        for _ in range(3):
            for (x, y), (u, _) in zip(one, two, strict=False):
                hidden = model[1](model[0](torch.cat([x, u])))
                out = model[3](model[2](hidden))
                loss = F.cross_entropy(out[: len(x)], y) + out[len(x) :].square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return flat(model)


def last_of_one(*, again: bool = False, block: Any = nullcontext) -> np.ndarray:
    """Two batches that are as large, until the last of the second loader's. again: it is gone
    through again, by batches that were kept."""
    torch.manual_seed(3)
    with block():
        body, head = nn.Sequential(nn.Linear(12, 8), nn.Tanh()), nn.Linear(8, 3)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        one, two = DataLoader(data(57), 10, shuffle=True), DataLoader(data(29), 10, shuffle=True)
        for at in range(3):
            for (x, y), (u, v) in zip(one, cycle(two) if again else two, strict=False):
                hidden = body(torch.cat([x, u]) * 1.5)
                first, second = head(hidden), head(hidden[: len(x)])
                loss = F.cross_entropy(first[: len(x)], y) + F.cross_entropy(second, y)
                if at:  # as many terms, of other lengths, as in the first passes
                    loss = loss + F.cross_entropy(first[len(x) :], v)
                else:
                    loss = loss + F.cross_entropy(first, torch.cat([y, v]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return flat(body)


def one_loss(*, block: Any = nullcontext) -> np.ndarray:
    """Over two batches at once. Of the last of the one, not every rank of three has a row, and as
    many features as a rank has rows of it before."""
    torch.manual_seed(3)
    with block():
        model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x, y), (u, v) in zip(DataLoader(data(70), 34), DataLoader(data(90), 42), strict=False):
            loss = F.cross_entropy(model(torch.cat([x, u])), torch.cat([y, v]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return flat(model)


def flat(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def in_and_out() -> dict[str, float]:
    """How far each form ends in the block from where it ends without."""
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for form in FORMS:
        for kept in (False, True):
            plain, ours = train(form, kept=kept), train(form, kept=kept, block=dream.strategy)
            found[f"{form} {kept}"] = float(np.abs(plain - ours).max())
    for loop in (labelled_and_not, two_domains, last_of_one):
        found[loop.__name__] = float(np.abs(loop() - loop(block=dream.strategy)).max())
    return found


def strictly() -> float:
    """Views of one loader's batch, joined to another's. How far `one_loss` is from one device."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    with dream.strategy("mirrored", strict=True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x, y), (u, v) in zip(DataLoader(data(32), 16), DataLoader(data(48), 24), strict=True):
            views = torch.cat([u, u.flip(1)])
            out = model(torch.cat([x, views]))
            loss = F.cross_entropy(out[: len(x)], y)
            loss = loss + F.cross_entropy(out[len(x) :], torch.cat([v, v]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    kept = last_of_one(again=True, block=partial(dream.strategy, strict=True))
    far = np.abs(last_of_one(again=True) - kept).max()
    return float(max(far, np.abs(one_loss() - one_loss(block=dream.strategy)).max()))
