"""Passes of the explicit step through a sharded model, and losses that are taken of parameters too.

torch adds a number that was computed from DTensors to one that was not, and gives a DTensor.
Backward then hands DTensor gradients to ordinary tensors' operations, which refuse them: where such
a gradient leaves the DTensors, it is made an ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, final

import torch
from torch import distributed
from torch.autograd.graph import Node
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from dream._errors import Unsupported
from dream.adapters.pytorch.errors import peers_may_fail
from dream.adapters.pytorch.parallel._private import gives_dtensor
from dream.adapters.pytorch.parallel.sharding.module import ShardedModule
from dream.adapters.pytorch.private import to_local
from dream.adapters.pytorch.train_step import Batch, Passes, check_scalar
from dream.adapters.pytorch.update.scaling import Scaling
from dream.data.partition import split


@final
class ShardedPasses(Passes):
    """Each rank of the group has its own share of a batch, and the loss is added up over it. None
    where there is one rank to a batch."""

    def __init__(
        self,
        root: ShardedModule,
        loss: Callable[..., Any],
        group: ProcessGroup | None,
        scaling: Scaling | None = None,
    ) -> None:
        self._root, self._loss, self._group = root, loss, group
        self._backward = torch.autograd.backward if scaling is None else scaling.backward
        self._mean = torch.zeros(())
        self._work: distributed.Work | None = None

    def run(self, batch: Batch, weight: float, *, first: bool, last: bool) -> None:
        inputs, target = split(batch)
        root = self._root
        root.begin_micro(completes=last)
        output = root.run_scaled(
            root.inner, inputs, {}, 0.0 if weight == 0.0 else 1.0, counted=True
        )
        value = check_scalar(self._loss(output, target))
        if isinstance(value, DTensor):  # a penalty on cut parameters, which is not to be scaled
            root.scale(weight)
            mean = to_local(value.detach()) * weight
        else:
            value = value if weight == 1.0 else value * weight
            mean = value.detach().clone()
        mean = mean if weight else torch.zeros_like(mean)
        self._mean = mean if first else self._mean + mean
        if last and self._group is not None:
            self._work = _sum_up(self._mean, self._group)
        with ordinary_gradients([value]):
            self._backward((value,))

    def told(self) -> torch.Tensor:
        if self._work is None or self._group is None:
            return self._mean
        with peers_may_fail("the loss of a step"):
            self._work.wait()
        self._work = None
        return self._mean.div_(distributed.get_world_size(self._group))


def _sum_up(loss: torch.Tensor, group: ProcessGroup) -> distributed.Work:
    """Begin before backward, whose time it takes no part of."""
    work: distributed.Work | None = distributed.all_reduce(loss, group=group, async_op=True)
    assert work is not None
    return work


@contextmanager
def ordinary_gradients(starts: Iterable[Any]) -> Iterator[None]:
    """Have backward passes from these hand ordinary gradients to ordinary tensors."""
    with ExitStack() as hooks:
        for start in starts:
            if isinstance(start, DTensor) and start.grad_fn is not None:
                for node in _borders(start.grad_fn):
                    hooks.callback(node.register_prehook(_ordinary).remove)
        yield


def refuse_dtensor(loss: Any) -> None:
    """Raise where a loss is to be weighed by hand: the weights make the ranks' samples count
    alike, and would make their parts of the penalty count unlike."""
    if isinstance(loss, DTensor):
        raise Unsupported(
            "A loss that is weighed is of samples alone, and this one is of cut parameters too. "
            "Received: strategy.weigh with a loss that a penalty on the parameters was added to. "
            "Weigh the loss first, and add the penalty to what comes back."
        )


def _ordinary(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(g.full_tensor() if isinstance(g, DTensor) else g for g in gradients)


def _borders(start: Node) -> list[Node]:
    """Find the nodes of ordinary tensors that those of DTensors hand gradients to."""
    cut: dict[Node, bool] = {}
    waiting = [start]
    while waiting:
        node = waiting[-1]
        before = [] if node in cut else [n for n in _before(node) if n not in cut]
        if before:
            waiting += before
            continue
        waiting.pop()
        cut[node] = _gives_cut(node, cut)
    return list(
        {n: None for node, is_cut in cut.items() if is_cut for n in _before(node) if not cut[n]}
    )


def _gives_cut(node: Node, known: dict[Node, bool]) -> bool:
    """Tell whether the node computed a DTensor."""
    variable = getattr(node, "variable", None)  # of a leaf
    if variable is not None:
        return isinstance(variable, DTensor)
    gives = gives_dtensor(node)
    return gives if gives is not None else any(known[before] for before in _before(node))


def _before(node: Node) -> list[Node]:
    return [before for before, _ in node.next_functions if before is not None]
