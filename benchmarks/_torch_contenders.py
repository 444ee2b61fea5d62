"""Who trains in the step benchmark: dream, raw DDP and its peers, each as its users write it.

A contender is made by a function `Work -> Contender`. The share of a rank in the global batch is
the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import torch
from _torch_work import BATCH, Work, plain_backward, sgd, train
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dream


@dataclass(frozen=True, slots=True)
class Contender:
    """batches: one epoch's, anew at each iteration. train: trains on them."""

    batches: Iterable[Any]
    train: Callable[[Iterable[Any]], None]

    def ready(self) -> Contender:
        """The same on batches that were read before, so that loading is not timed."""
        return Contender(list(self.batches), self.train)


Make = Callable[[Work], Contender]


def _share() -> int:
    return BATCH // distributed.get_world_size()


def raw_ddp(work: Work) -> Contender:
    model = DistributedDataParallel(work.model())
    data = work.data()
    loader = DataLoader(data, batch_size=_share(), sampler=DistributedSampler(data))
    return Contender(loader, partial(train, model, sgd(model)))


def accelerate(work: Work) -> Contender:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = work.model()
    loader = DataLoader(work.data(), batch_size=_share(), shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, sgd(model), loader)
    return Contender(loader, partial(train, model, optimizer, backward=accelerator.backward))


def fabric(work: Work) -> Contender:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=distributed.get_world_size(), strategy="ddp")
    fabric.launch()
    model = work.model()
    model, optimizer = fabric.setup(model, sgd(model))
    loader = DataLoader(work.data(), batch_size=_share(), shuffle=True)
    loader = fabric.setup_dataloaders(loader)
    return Contender(loader, partial(train, model, optimizer, backward=fabric.backward))


def dream_loop(work: Work, reduction: str = "auto") -> Contender:
    """The block, and the user's own loop."""
    with dream.strategy("mirrored", reduction=reduction):
        model = work.model()
        optimizer = sgd(model)
        loader = DataLoader(work.data(), batch_size=BATCH, shuffle=True)
    return Contender(loader, partial(train, model, optimizer))


def dream_step(work: Work, reduction: str = "auto") -> Contender:
    """`prepare` and `train_step`, which also hands out the global mean loss."""
    with dream.strategy("mirrored", reduction=reduction) as strategy:
        model = work.model()
        loader = DataLoader(work.data(), batch_size=BATCH, shuffle=True)
        model, optimizer, loader = strategy.prepare(model, sgd(model), loader)
        step = strategy.train_step(model, F.cross_entropy, optimizer)

    def epoch(batches: Iterable[Any]) -> None:
        for batch in batches:
            step(*batch)

    return Contender(loader, epoch)


def bare_horovod(work: Work) -> Contender:
    """Hooks on the Horovod core, waited for at the end of backward, so that users may clip."""
    import horovod.torch as hvd

    hvd.init()
    model = work.model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    _reduce_in_backward(model, hvd)
    data = work.data()
    loader = DataLoader(data, batch_size=_share(), sampler=DistributedSampler(data))
    return Contender(loader, partial(train, model, sgd(model)))


def _reduce_in_backward(model: nn.Module, hvd: Any) -> None:
    waiting: list[int] = []

    def finish() -> None:
        for handle in waiting:
            hvd.synchronize(handle)
        waiting.clear()

    def reduce(name: str, parameter: nn.Parameter) -> None:
        if not waiting:
            torch.autograd.Variable._execution_engine.queue_callback(finish)
        waiting.append(hvd.allreduce_async_(parameter.grad, name=name, op=hvd.Average))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(reduce, f"bare.{name}"))


GLOO: dict[str, Make] = {
    "raw DDP": raw_ddp,
    "raw DDP again": raw_ddp,
    "dream, own loop": dream_loop,
    "dream, train_step": dream_step,
}
PEERS: dict[str, tuple[str, Make]] = {
    "Accelerate": ("accelerate", accelerate),
    "Lightning Fabric": ("lightning_fabric", fabric),
}
RING: dict[str, Make] = {
    "bare hooks on Horovod": bare_horovod,
    "bare hooks again": bare_horovod,
    "dream on the ring, own loop": partial(dream_loop, reduction="horovod"),
    "dream on the ring, train_step": partial(dream_step, reduction="horovod"),
}


def contenders(family: Literal["gloo", "ring"]) -> dict[str, Make]:
    """Those that are installed; the first is the baseline, the second shows the noise."""
    if family == "ring":
        return RING
    return GLOO | {name: make for name, (module, make) in PEERS.items() if find_spec(module)}
