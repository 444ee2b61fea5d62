"""Who trains: dream, raw DDP and its peers, each as its users write it.

A contender is made by a function `Work -> Contender`. Outside dream's block the batch size is a
rank's own, so those who write for it divide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import torch
from _torch_work import Work
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import dream


@dataclass(frozen=True, slots=True)
class Contender:
    """model: with the parameters that are trained. batches: one epoch's, anew at each iteration.
    train: trains on them."""

    model: nn.Module
    batches: Iterable[Any]
    train: Callable[[Iterable[Any]], None]

    def epoch(self) -> None:
        self.train(self.batches)

    def ready(self) -> Contender:
        """The same on batches that were read before, so that loading is not timed."""
        return Contender(self.model, list(self.batches), self.train)


Make = Callable[[Work], Contender]


def of_a_script(body: nn.Module) -> nn.Module:
    """The same as a class of a script's own, with code of its own. What torch.compile makes of DDP
    begins anew past a break, at the model's forward pass, and only at one that lies outside
    torch's files: an `nn.Sequential` would stay as it is."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        return out

    own = FunctionType(forward.__code__.replace(), globals())
    model: nn.Module = type("Own", (nn.Module,), {"forward": own})()
    model.body = body
    return model


def plain(work: Work) -> Contender:
    """One device, no library: the reference."""
    model = work.build()
    loader = DataLoader(work.data, batch_size=work.batch, shuffle=work.shuffle)
    return Contender(model, loader, partial(work.loop, model, work.optimizer(model)))


def raw_ddp(work: Work, *, compiled: bool = False) -> Contender:
    """compiled: as torch's pages have it, over DDP, whose own optimiser cuts the graph."""
    model = of_a_script(work.build()) if compiled else work.build()
    ddp = DistributedDataParallel(model)
    called = torch.compile(ddp) if compiled else ddp
    return Contender(model, _dealt(work), partial(work.loop, called, work.optimizer(ddp)))


def accelerate(work: Work, *, split: bool = False) -> Contender:
    """split: `split_batches=True`, under which the batch size is the global one."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    config = DataLoaderConfiguration(split_batches=split)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model = work.build()
    size = work.batch if split else _share(work)
    loader = DataLoader(work.data, batch_size=size, shuffle=work.shuffle)
    wrapped, optimizer, loader = accelerator.prepare(model, work.optimizer(model), loader)
    return Contender(
        model, loader, partial(work.loop, wrapped, optimizer, backward=accelerator.backward)
    )


def fabric(work: Work) -> Contender:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=distributed.get_world_size(), strategy="ddp")
    fabric.launch()
    model = work.build()
    wrapped, optimizer = fabric.setup(model, work.optimizer(model))
    loader = fabric.setup_dataloaders(
        DataLoader(work.data, batch_size=_share(work), shuffle=work.shuffle)
    )
    return Contender(
        model, loader, partial(work.loop, wrapped, optimizer, backward=fabric.backward)
    )


def dream_loop(work: Work, *, reduction: str = "auto", compiled: bool = False) -> Contender:
    """The block, and the user's own loop."""
    with dream.strategy("mirrored", reduction=reduction):
        model = of_a_script(work.build()) if compiled else work.build()
        called = torch.compile(model) if compiled else model
        optimizer = work.optimizer(model)
        loader = DataLoader(work.data, batch_size=work.batch, shuffle=work.shuffle)
    return Contender(model, loader, partial(work.loop, called, optimizer))


def dream_step(work: Work, *, reduction: str = "auto") -> Contender:
    """`prepare` and `train_step`, which also hands out the global mean loss."""
    with dream.strategy("mirrored", reduction=reduction) as strategy:
        model = work.build()
        optimizer = work.optimizer(model)
        loader = DataLoader(work.data, batch_size=work.batch, shuffle=work.shuffle)
        model, optimizer, loader = strategy.prepare(model, optimizer, loader)
        step = strategy.train_step(model, F.cross_entropy, optimizer)

    def epoch(batches: Iterable[Any]) -> None:
        for batch in batches:
            step(*batch)

    return Contender(model, loader, epoch)


def bare_horovod(work: Work) -> Contender:
    """Hooks on the Horovod core, waited for at the end of backward, so that users may clip."""
    import horovod.torch as hvd

    hvd.init()
    model = work.build()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    _reduce_in_backward(model, hvd)
    return Contender(model, _dealt(work), partial(work.loop, model, work.optimizer(model)))


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


def installed(package: str) -> bool:
    return find_spec(package) is not None


def _share(work: Work) -> int:
    return work.batch // distributed.get_world_size()


def _dealt(work: Work) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(work.data, shuffle=work.shuffle)
    return DataLoader(work.data, batch_size=_share(work), sampler=sampler)
