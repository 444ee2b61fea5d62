"""Parameters that no distributed module holds: their gradients are averaged after backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, final
from weakref import ref

import torch
from torch.optim import Optimizer

from dream._log import Once
from dream._patches import value_set
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.loss.backward import WeighedBackward
from dream.adapters.pytorch.loss.calls import SIZE, Bearer, TrainingCall
from dream.adapters.pytorch.loss.factors import Factor
from dream.adapters.pytorch.loss.private import quick
from dream.adapters.pytorch.loss.samples.row_leaves import leaves_of
from dream.adapters.pytorch.module import ModuleRegistry
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.private import recomputing

_AS_A_MEAN = (
    "a loss that comes through no module of the block counts as a mean over samples here: a sum "
    "trains another model. Compute it in a module"
)
_left_alone: ContextVar[bool] = ContextVar("dream.gradients_left_alone", default=False)


def leave_gradients_alone() -> AbstractContextManager[None]:
    """Backward passes inside are of a step that averages by itself: a `train_step` of Keras's,
    whose optimizer does."""
    return value_set(_left_alone, True)


def left_alone() -> bool:
    """Whether the step that is going on averages by itself."""
    return _left_alone.get()


@final
class LooseParameters:
    """Averages the gradients of parameters that optimizers have and no module of the registry;
    where a loss comes through no module at all, those that it was computed from. Each backward pass
    is one of all ranks.

    called: whether a module was called whose backward has not come; else the registry is asked.
    weighed: reads a loss that comes through no module; None where it counts as a mean over samples.
    """

    weighed: WeighedBackward | None = None

    def __init__(
        self, registry: ModuleRegistry, shares: Shares, called: Callable[[], bool] | None = None
    ) -> None:
        self._registry, self._shares = registry, shares
        self._called = called or registry.called
        self._optimizers: list[ref[Optimizer]] = []
        self._uncovered: dict[int, list[torch.Tensor]] = {}
        self._known = (-1, 0)
        self._averaged: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._inside, self._say = False, Once()

    def watch(self, optimizer: Optimizer) -> None:
        """Look at an optimizer until modules are known to hold all that it steps. In the order in
        which they are made: every rank's is the same."""
        self._optimizers.append(ref(optimizer))

    def wrap(self, run: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward` that averages what no module does."""
        run = quick(run)

        @wraps(run)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            called = self._called()
            if called and not self._optimizers:
                run(tensors, grad_tensors, *args, **kwargs)
                return
            if self._inside or recomputing() or left_alone():
                run(tensors, grad_tensors, *args, **kwargs)
                return
            leaves = [] if called else self._of_loss(tensors)
            bare = self._without_rows(leaves)
            held = self._gradients() if called else []
            self._averaged = []
            self._inside = True
            try:
                keep = dict(zip(("retain_graph", "create_graph"), args, strict=False)) | kwargs
                plain = keep.pop("inputs", None) is None
                if leaves and self.weighed is not None and plain:
                    self._read(self.weighed, leaves, run, tensors, grad_tensors, keep)
                    return
                if leaves:
                    self._run_weighed(run, tensors, grad_tensors, args, kwargs)
                else:
                    run(tensors, grad_tensors, *args, **kwargs)
                if called:
                    bare = self._without_rows(p for each in held for p in each.reached())
                if bare:
                    self._average(bare)
                    self._averaged = [(p, p.grad) for p in bare]
            finally:
                self._inside = False
                for each in held:
                    each.put_back()

        return backward

    @torch.no_grad()
    def multiply(self, factor: Factor) -> None:
        """Multiply what the last backward pass through modules has added: by what the ranks had
        still to count."""
        for parameter, own in self._averaged:
            if own is None or parameter.grad is None:
                continue
            if parameter.grad is own or self.weighed is None:  # of all micro-batches
                parameter.grad.mul_(factor)
            else:
                parameter.grad += own * (factor - 1.0)

    def _gradients(self) -> list[_Held]:
        """What the optimizers' uncovered parameters hold before a backward pass. Only what it comes
        to is averaged: an optimizer that none comes to may be long forgotten, and is collected on
        some rank sooner than on another."""
        if not self._optimizers:
            return []
        now = (self._registry.generation, len(self._optimizers))
        if now != self._known:
            self._look_again()
            self._known = (self._registry.generation, len(self._optimizers))
        return [_Held(each) for each in self._uncovered.values()]

    def _look_again(self) -> None:
        reduced = self._registry.reduced()
        left, uncovered = [], {}
        for each in self._optimizers:
            optimizer = each()
            if optimizer is None:
                continue
            stepped: list[torch.Tensor] = [*parameters_of(optimizer)]
            bare = [p for p in stepped if id(p) not in reduced]
            if bare:
                left.append(each)
                uncovered[id(optimizer)] = bare
        self._optimizers, self._uncovered = left, uncovered

    def _of_loss(self, tensors: Any) -> list[torch.Tensor]:
        """What a loss of one number was computed from."""
        if not isinstance(tensors, torch.Tensor) or tensors.numel() != 1:
            return []
        reduced = self._registry.reduced()
        return [leaf for leaf in leaves_of(tensors.grad_fn) if id(leaf) not in reduced]

    def _without_rows(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Leave out what holds rows of a batch, each rank's its own."""
        rows = self._registry.row_leaves
        return [x for x in tensors if rows is None or x not in rows]

    def _read(
        self,
        weighed: WeighedBackward,
        leaves: list[torch.Tensor],
        run: Callable[..., None],
        root: torch.Tensor,
        given: Any,
        keep: dict[str, Any],
    ) -> None:
        """Weigh a loss by what its graph says, and make it the global one. A rank without a sample
        tells the others so. keep: of the graph."""
        share = self._shares.of(())
        empty = share is not None and not share.count
        average = partial(self._average, self._without_rows(leaves))
        call = TrainingCall(_Bare(leaves, average), share, [])
        weighed.through(call, (lambda *_, **__: None) if empty else run, root, given, keep)

    def _run_weighed(
        self, run: Callable[..., None], root: torch.Tensor, given: Any, args: Any, kwargs: Any
    ) -> None:
        """The mean over this rank's samples, as a part of that over all ranks'. A rank without a
        sample has nothing to say."""
        share = self._shares.of(())
        weight = 1.0 if share is None else share.weight
        if share is not None and share.parts > 1:
            self._say(_AS_A_MEAN)
        if weight == 0.0:
            return
        if weight != 1.0:
            given = torch.full_like(root, weight) if given is None else given * weight
        run(root, given, *args, **kwargs)

    @torch.no_grad()
    def _average(
        self, bare: list[torch.Tensor], message: torch.Tensor | None = None
    ) -> torch.Tensor:
        """In one call: which have a gradient, a message, and the gradients. Returns the mean of the
        message."""
        self._registry.bare.update({id(p): ref(p) for p in bare})
        if not bare and message is not None:
            only: torch.Tensor = self._registry.communicator.all_reduce(message)
            return only
        device = bare[0].device  # these travel together
        some = torch.tensor([float(p.grad is not None) for p in bare], device=device)
        own = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in bare]
        sent = torch.zeros(1, device=device) if message is None else message.to(device)
        there, told, *means = self._registry.communicator.all_reduce([some, sent, *own])
        for parameter, any_has, mean in zip(bare, there.tolist(), means, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(mean)
            elif any_has:
                parameter.grad = mean.clone()
        assert isinstance(told, torch.Tensor)
        return told


@final
class _Bare(Bearer):
    """Stands for what a loop computes by itself, in one backward pass. average: makes the gradients
    of those that all ranks have, and a message, the mean over the ranks."""

    alone = completes = True

    def __init__(
        self,
        parameters: list[torch.Tensor],
        average: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._parameters, self._average = parameters, average
        self._message = torch.zeros(SIZE)
        self._over = False

    @property
    def waits(self) -> bool:
        return not self._over

    def send(self, message: torch.Tensor) -> None:
        self._message = message

    def finish(self, run: Callable[..., None]) -> None:
        del run
        self._over = True
        self._message = self._average(self._message)

    def received(self) -> torch.Tensor:
        return self._message

    @property
    def trained(self) -> list[Any]:
        return self._parameters


@final
class _Held:
    """The gradients that some parameters have, set aside for a backward pass: what it adds to them
    is seen, and made global, by itself."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._before = [(p, p.grad) for p in parameters]
        for parameter in parameters:
            parameter.grad = None

    def reached(self) -> list[torch.Tensor]:
        """Return all of them where one has a gradient of the pass."""
        if all(p.grad is None for p, _ in self._before):
            return []
        return [p for p, _ in self._before if p.requires_grad]

    def put_back(self) -> None:
        """Add it to what they had."""
        for parameter, before in self._before:
            if before is None:
                continue
            if parameter.grad is None:
                parameter.grad = before
            elif parameter.grad.requires_grad or before.requires_grad:
                parameter.grad = before + parameter.grad
            else:
                parameter.grad = before.add_(parameter.grad)
