"""Scripts whose loss a loop makes sample by sample, or image by image, as detectors, matchers and
rankers do: samples that are left out, a last batch of which some rank has no row, sizes that
coincide with a share's rows. All of them are exact, and nothing is said of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from loss_scripts import BATCH, WIDTH, Trained, integers, loop, mlp, numbers, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KINDS = 7
Loss = Callable[[nn.Module, Any], torch.Tensor]


def batches(*columns: torch.Tensor, samples: int = 17) -> DataLoader[Any]:
    """Of 17 samples the last batch is one, of which all ranks but one have none."""
    drawn = (numbers(37, WIDTH, seed=2), *columns)
    return DataLoader(TensorDataset(*(each[:samples] for each in drawn)), batch_size=BATCH)


def kinds(samples: int = 17) -> DataLoader[Any]:
    return batches(integers(KINDS, 37, seed=3), samples=samples)


def each_of(m: nn.Module, b: Any, least: int = 0) -> Iterator[torch.Tensor]:
    """The losses of samples that are none of the first kinds."""
    out = m(b[0])
    for i in range(len(b[0])):
        if b[1][i] >= least:
            yield F.cross_entropy(out[i], b[1][i])


def penalty_of(m: nn.Module) -> Any:
    return 0.01 * sum(p.pow(2).sum() for p in m.parameters())


def added_to_zero() -> Trained:
    """A rank without a row gives a number without a graph."""
    return loop(mlp(KINDS), lambda m, b: sum(each_of(m, b), torch.zeros(())), kinds())


def added_to_a_zero_that_is_kept() -> Trained:
    """It is the loss itself of a rank whose rows are all left out, now this rank, now another."""
    zero = torch.zeros(())

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, value = m(b[0]), zero
        for i in range(len(b[0])):
            if b[1][i]:
                value = value + out[i].square().sum()
        return value

    rare = torch.zeros(37, dtype=torch.int64)
    rare[[1, 10, 16]] = 1
    return loop(mlp(KINDS), loss, batches(rare))


def gathered_in_a_list() -> Trained:
    """A fresh 0 is in it before its backward, and holds the global loss ever after."""
    kept: list[torch.Tensor] = []

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        kept.append(sum(each_of(m, b, 1), torch.zeros(())))
        return kept[-1]

    rare, model = torch.zeros(37, dtype=torch.int64), mlp(KINDS)
    rare[[1, 10, 16]] = 1
    loop(model, loss, batches(rare))
    return trained(model, [each.item() for each in kept])


def added_to_nothing() -> Trained:
    """The first loss is what others are added to, though a rank may have one alone."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        found = None
        for each in each_of(m, b, 3):
            found = each if found is None else found + each
        return m(b[0]).sum() * 0 if found is None else found / BATCH

    return loop(mlp(KINDS), loss, kinds())


def some_left_out() -> Trained:
    """A mean over those that are there, of which a rank may have none."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        found = [*each_of(m, b, 4)]
        return torch.stack(found).mean() if found else m(b[0]).sum() * 0

    return loop(mlp(KINDS), loss, kinds(21))


def some_left_out_beside_a_penalty() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        found = [*each_of(m, b, 4)]
        mean = sum(found) / len(found) if found else m(b[0]).sum() * 0
        return mean + penalty_of(m)

    return loop(mlp(KINDS), loss, kinds())


def beside_a_penalty() -> Trained:
    """Nothing but the penalty is left to a rank without a row."""
    return loop(mlp(KINDS), lambda m, b: sum(each_of(m, b)) + penalty_of(m), kinds())


def as_many_kinds_as_rows() -> Trained:
    """A softmax over four kinds, and four rows."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return sum(each_of(m, b)) / len(b[0])  # type: ignore[return-value]

    return loop(mlp(4), loss, batches(integers(4, 37, seed=3), samples=16))


def by_matching() -> Trained:
    """Targets are matched to what each image's queries give, over the number of all targets."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        x, boxes, have = b
        out = m(x).view(len(x), 3, 3)
        value = out.sum() * 0
        for given, targets, count in zip(out, boxes, have.tolist(), strict=True):
            if count:
                cost = torch.cdist(given.detach(), targets[:count], p=1).tolist()
                ways = itertools.permutations(range(3), count)
                best = min(ways, key=lambda way: sum(cost[q][j] for j, q in enumerate(way)))
                value = value + (given[list(best)] - targets[:count]).abs().sum()
        return value / max(int(have.sum()), 1)

    return loop(mlp(9), loss, batches(numbers(37, 2, 3, seed=5), integers(3, 37, seed=6)))


def by_pairs_of_an_image() -> Trained:
    """Margins between the good and the bad of each list; some lists have no pair."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        found = []
        for scores, good in zip(m(b[0]), b[1], strict=True):
            pairs = scores[good == 1][:, None] - scores[good == 0][None]
            if pairs.numel():
                found.append(F.relu(1 - pairs).mean())
        return torch.stack(found).mean() if found else m(b[0]).sum() * 0

    return loop(mlp(5), loss, batches(integers(2, 37, 5, seed=13)))


def dice_of_each() -> Trained:
    """A quotient of sums over one picture, and a root of a mean over it."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        value = torch.zeros(())
        for given, mask in zip(m(b[0]).sigmoid(), b[1], strict=True):
            value = value + 1 - 2 * (given * mask).sum() / (given.sum() + mask.sum() + 1)
            value = value + 0.1 * F.mse_loss(given, mask).sqrt()
        return value / max(1, len(b[0]))

    return loop(mlp(9), loss, batches((numbers(37, 9, seed=15) > 0).float()))


def over_the_sum_of_weights() -> Trained:
    """Each row is a slice of one, weighed by a number of its own."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, value, weights = m(b[0]), torch.zeros(()), torch.zeros(())
        for i in range(len(b[0])):
            value = value + b[2][i] * F.cross_entropy(out[i : i + 1], b[1][i : i + 1])
            weights = weights + b[2][i]
        return value / weights.clamp(min=1e-6)

    columns = integers(KINDS, 37, seed=3), numbers(37, seed=4).abs()
    return loop(mlp(KINDS), loss, batches(*columns))


def by_weights_in_one_tensor() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        found = [*each_of(m, b)]
        return (torch.stack(found) * b[2]).sum() / b[2].sum() if found else m(b[0]).sum() * 0

    columns = integers(KINDS, 37, seed=3), numbers(37, seed=4).abs()
    return loop(mlp(KINDS), loss, batches(*columns))


def parts_of_each() -> Trained:
    """As many boxes to an image as rows to a share."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out, found = m(b[0]).view(-1, 3, 2), []
        for i in range(len(b[0])):
            found.append((out[i][: b[2][i]] - b[1][i][: b[2][i]]).abs().mean())
        return torch.stack(found).mean()

    columns = numbers(12, 3, 2, seed=25), integers(3, 12, seed=26) + 1
    data = TensorDataset(numbers(12, WIDTH, seed=2), *columns)
    return loop(mlp(6), loss, DataLoader(data, batch_size=6))


class Steps(nn.Module):
    """Four steps, time first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.cells, self.head = nn.LSTM(2, 7), nn.Linear(7, KINDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.cells(x.view(-1, 4, 2).transpose(0, 1))
        made: torch.Tensor = self.head(out)
        return made


class Heads(nn.Module):
    """Two answers in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.one, self.other = nn.Linear(WIDTH, KINDS), nn.Linear(WIDTH, KINDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.one(x), self.other(x)])


def as_many_steps_as_rows() -> Trained:
    """What is taken by its number is a step of all rows."""

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        return sum(F.cross_entropy(out[t], b[1][:, t]) for t in range(4))  # type: ignore[return-value]

    data = TensorDataset(numbers(16, 8, seed=2), integers(KINDS, 16, 4, seed=3))
    return loop(Steps(), loss, DataLoader(data, batch_size=BATCH))


def as_many_heads_as_rows() -> Trained:
    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        one, other = m(b[0])
        return F.cross_entropy(one, b[1]) + F.cross_entropy(other, b[1])

    data = TensorDataset(numbers(20, WIDTH, seed=2), integers(KINDS, 20, seed=3))
    return loop(Heads(), loss, DataLoader(data, batch_size=4))


def a_part_whose_weight_grows() -> Trained:
    """From 0 on, where it is nothing yet."""
    steps = itertools.count()

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        out = m(b[0])
        weight = max(0, next(steps) - 4) / 8
        return F.cross_entropy(out, b[1]) + weight * out.square().sum() / len(out)

    return loop(mlp(KINDS), loss, kinds(13))


SINGLES: dict[str, Callable[[], Trained]] = {
    each.__name__: each
    for each in (
        added_to_zero, added_to_a_zero_that_is_kept, gathered_in_a_list, added_to_nothing,
        some_left_out, some_left_out_beside_a_penalty,
        beside_a_penalty, as_many_kinds_as_rows, by_matching, by_pairs_of_an_image, dice_of_each,
        over_the_sum_of_weights, by_weights_in_one_tensor, parts_of_each,
        as_many_steps_as_rows, as_many_heads_as_rows, a_part_whose_weight_grows,
    )
}  # fmt: skip
