"""What is wrong elsewhere, and dream made wrong on purpose: the laws must notice each.

The raw cases are how loops over DistributedDataParallel are commonly written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import contract_torch_data
import contract_torch_objects
import contract_torch_training
import torch
from contract_case import Cases, Env, Figures
from contract_torch_explicit import sentences, token_loss
from contract_torch_kit import BATCH, EPOCHS, Net, arrays, momentum, parameters, samples_of, start
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from dream.adapters.pytorch import adapter
from dream.adapters.pytorch.data import sampling
from dream.adapters.pytorch.loss.factors import Factors, Weighed
from dream.adapters.pytorch.loss.terms import Term
from dream.data.partition import Division, Share

CASES = Cases()
__all__ = ["CASES", "start"]


def _group(env: Env) -> None:
    """The process group, by dream's own way in; the rest is DDP as it comes."""
    if not distributed.is_initialized():
        with env.block():
            pass


@CASES.add("cell")
def raw_mean_of_means(env: Env) -> Figures:
    """Right samples on every rank, each rank's mean counted alike: 61 samples, 16 a batch."""
    _group(env)
    x, y = arrays(61)
    model = DistributedDataParallel(Net())
    optimizer = momentum(model.parameters())
    for begin in [*range(0, 61, BATCH)] * EPOCHS:
        share = slice(begin + env.rank, min(begin + BATCH, 61), env.ranks)
        optimizer.zero_grad()
        F.cross_entropy(model(x[share]), y[share]).backward()
        optimizer.step()
    return {"parameters": parameters(model.module)}


@CASES.add("cell")
def raw_padded_sampler(env: Env) -> Figures:
    """DistributedSampler fills the last round with samples that were seen already."""
    _group(env)
    data = samples_of(61)
    sampler: Any = DistributedSampler(data, shuffle=False)
    model = DistributedDataParallel(Net())
    optimizer = momentum(model.parameters())
    seen = 0
    for _ in range(EPOCHS):
        for x, y in DataLoader(data, batch_size=BATCH // env.ranks, sampler=sampler):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            seen += len(y)
    return {"parameters": parameters(model.module), "seen": seen}


@CASES.add("cell")
def raw_clip_before_reduce(env: Env) -> Figures:
    """Every rank clips its own gradient, and the clipped ones are averaged."""
    _group(env)
    x, y = arrays(61)
    model = Net()
    optimizer = momentum(model.parameters())
    for begin in [*range(0, 61, BATCH)] * EPOCHS:
        stop = min(begin + BATCH, 61)
        share = slice(begin + env.rank, stop, env.ranks)
        optimizer.zero_grad()
        weight = len(y[share]) * env.ranks / (stop - begin)
        (F.cross_entropy(model(x[share]), y[share]) * weight).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= env.ranks  # type: ignore[operator]
        optimizer.step()
    return {"parameters": parameters(model)}


def _micro_batches(
    rows: int, loss: Callable[[slice], torch.Tensor], model: nn.Module, *, clip: float | None = None
) -> Figures:
    """Four micro-batches to an update, the mean of each divided by four; as on one device."""
    optimizer = momentum(model.parameters())
    for begin in [*range(0, rows, BATCH)] * EPOCHS:
        stop = min(begin + BATCH, rows)
        optimizer.zero_grad()
        for micro in torch.arange(begin, stop).tensor_split(4):
            if len(micro):
                (loss(slice(int(micro[0]), int(micro[-1]) + 1)) / 4).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {"parameters": parameters(model)}


@CASES.add("cell")
def raw_accumulated_mean_of_means(_: Env) -> Figures:
    """The last update's micro-batches are unequal."""
    (x, y), model = arrays(61), Net()
    return _micro_batches(61, lambda rows: F.cross_entropy(model(x[rows]), y[rows]), model)


@CASES.add("cell")
def raw_accumulated_token_loss(_: Env) -> Figures:
    """Micro-batches of unequal tokens count alike."""
    (x, y), model = sentences(49, hollow=False).tensors, Net()
    return _micro_batches(49, lambda rows: token_loss(model(x[rows]), y[rows]), model)


@CASES.add("cell")
def raw_accumulated_and_clipped(_: Env) -> Figures:
    """Each micro-batch's sum is clipped on the way."""
    (x, y), model = arrays(61), Net()
    return _micro_batches(
        61, lambda rows: F.cross_entropy(model(x[rows]), y[rows]), model, clip=0.05
    )


@CASES.add("cell")
def mutant_shares_count_alike(env: Env) -> Figures:
    def alike(_: object, terms: Sequence[Term], **__: object) -> Weighed:
        return Weighed([*terms], [1.0] * len(terms))

    with mock.patch.object(Factors, "weigh", alike):
        return contract_torch_training.uneven_momentum(env)


@CASES.add("cell")
def mutant_every_epoch_alike(env: Env) -> Figures:
    @contextmanager
    def alike(_: object, **__: object) -> Iterator[None]:
        torch.manual_seed(0)
        yield

    with mock.patch.object(sampling.DrawnOrder, "begin", alike):
        return contract_torch_data.shuffled_order(env)


@CASES.add("cell")
def mutant_deals_runs_that_overlap(env: Env) -> Figures:
    """Every rank keeps one sample that is its neighbour's."""

    fair = Division.share

    def greedy(division: Division, total: int, rank: int) -> Share:
        return replace(fair(division, total, rank), total=total + 1)

    with mock.patch.object(Division, "share", greedy):
        return contract_torch_training.uneven_momentum(env)


@CASES.add("cell")
def mutant_every_rank_writes(env: Env) -> Figures:
    with mock.patch.object(adapter, "write_files_once"):
        return contract_torch_objects.files_are_rank_0s(env)


@CASES.add("cell")
def mutant_rank_1_is_one_step_behind(env: Env) -> Figures:
    """A drift that hides below every tolerance still breaks bit-identity."""
    figures = contract_torch_training.uneven_momentum(env)
    if env.rank == 1:
        weight = torch.from_numpy(figures["parameters"]["0.head.bias"])
        weight[0] = torch.nextafter(weight[0], torch.tensor(9.0))
    return figures
