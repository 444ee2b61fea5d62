"""`torch.autograd.grad` of a loss with respect to parameters, or to rows of a batch, which is no
backward pass: what it returns is the gradient of the loss over the global batch, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, final

import torch
from torch import nn

from dream.adapters.pytorch.loss.backward import WeighedBackward
from dream.adapters.pytorch.loss.reading import tell_once
from dream.adapters.pytorch.loss.scaling import starts_of
from dream.adapters.pytorch.loss.terms import terms_of
from dream.adapters.pytorch.private import current_backward, recomputing
from dream.collectives import Communicator

_OWN = (
    "gradients by parameters that torch.autograd.grad returns for further differentiation, or of "
    "one of an update's micro-batches, are of this rank's samples alone; what is computed from "
    "them is then no gradient of the global batch. Average them where that matters, by "
    "strategy.communicator.all_reduce"
)
_BY_ROWS = (
    "gradients by a batch's rows that torch.autograd.grad returns, of a loss in several parts that "
    "count differently, are of a rank's share: larger than one device's by as many times as the "
    "batch counts more. Differentiate one mean or one sum, or go by the gradient's sign or "
    "direction"
)


@final
class RowGradients:
    """Has `torch.autograd.grad` by rows of a batch, no parameters, give those of the loss over the
    global batch."""

    def __init__(self, weighed: WeighedBackward, among: Communicator) -> None:
        self._weighed, self._among = weighed, among
        self._said: set[str] = set()

    def wrap(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(grad)
        def by_rows(
            outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            wanted = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            roots = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            part = self._part(roots, wanted) if grad_outputs is None else 1.0
            own = grad(roots, wanted, grad_outputs, *args, **kwargs)
            return own if part == 1.0 else tuple(x if x is None else x * part for x in own)

        return by_rows

    def _part(self, roots: Sequence[Any], wanted: Sequence[Any]) -> float:
        """What a loss over this rank's rows counts for in the one over the batch, where its
        gradients are by rows: those of an adversary, which a step is added to."""
        calls = self._weighed.waiting()
        if not calls or current_backward() != -1 or recomputing():
            return 1.0
        if len(roots) != 1 or not isinstance(roots[0], torch.Tensor) or roots[0].numel() != 1:
            return 1.0
        if roots[0].grad_fn is None:
            return 1.0
        terms = [term for term in terms_of(roots[0], calls) if term.share is not None]
        share = terms[0].share if terms else None
        if share is None or share.parts == 1 or share.micros > 1:
            return 1.0
        if not all(_has_rows(x, share.count) for x in wanted):
            return 1.0
        kinds = {term.kind for term in terms}
        if kinds == {"mean"} and all(term.share == share for term in terms):
            return share.count / share.total
        if kinds == {"count"} and len(terms) == 1:
            own = torch.as_tensor(terms[0].count, dtype=torch.float64).reshape(()).cpu()
            most = float(self._among.all_reduce(own, "sum"))
            return float(own) / most if most else 1.0
        if kinds - {"sum"}:
            tell_once(_BY_ROWS, self._said)
        return 1.0


@final
class Differentiated:
    """Stands for `torch.autograd.grad` while a block is open."""

    def __init__(self, weighed: WeighedBackward, among: Communicator) -> None:
        self._weighed, self._among = weighed, among
        self._said: set[str] = set()

    def wrap(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(grad)
        def differentiated(
            outputs: Any,
            inputs: Any,
            grad_outputs: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            wanted = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            if not self._concerns(wanted):
                return grad(
                    outputs, inputs, grad_outputs, retain_graph, create_graph, *args, **kwargs
                )
            roots = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            if create_graph or self._weighed.cut or kwargs.get("is_grads_batched"):
                tell_once(_OWN, self._said)
                return grad(
                    outputs, inputs, grad_outputs, retain_graph, create_graph, *args, **kwargs
                )
            given = [grad_outputs] if _is_one(grad_outputs) else list(grad_outputs)
            given = given * len(roots) if given == [None] else given

            def run(starts: list[Any]) -> Sequence[Any]:
                found: Sequence[Any] = grad(
                    roots, wanted, starts, retain_graph, create_graph, *args, **kwargs
                )
                return found

            return self._global(run, roots, given, wanted, keep=bool(retain_graph))

        return differentiated

    def _concerns(self, wanted: Sequence[Any]) -> bool:
        """Whether some of these are parameters of modules that were called, and no backward pass
        runs."""
        if not any(isinstance(x, nn.Parameter) for x in wanted):
            return False
        if recomputing() or current_backward() != -1:
            return False
        trained = {id(p) for bearer in self._weighed.bearers() for p in bearer.trained}
        return any(id(x) in trained for x in wanted)

    def _global(
        self,
        run: Callable[[list[Any]], Sequence[Any]],
        roots: list[Any],
        given: list[Any],
        wanted: list[Any],
        *,
        keep: bool,
    ) -> tuple[Any, ...]:
        reading = self._weighed.read_at_once(roots)
        starts, handles, value = starts_of(roots, given, reading.terms, reading.weighed)
        try:
            found = run(starts)
        finally:
            for handle in handles:
                handle.remove()
        gradients, told = self._mean(found, wanted, value, reading.told)
        if not keep:
            self._weighed.taken_elsewhere()
            if len(roots) == 1 and roots[0].numel() == 1:
                roots[0].data.fill_(told)
        return gradients

    @torch.no_grad()
    def _mean(
        self, found: Sequence[Any], wanted: list[Any], value: Any, asks: float
    ) -> tuple[tuple[Any, ...], torch.Tensor]:
        """In one call: which there are, the loss, what the ranks ask each other, and the gradients,
        each a mean over the ranks."""
        device = wanted[0].device  # these travel together
        some = torch.tensor([*(float(x is not None) for x in found), asks], device=device)
        own = [
            torch.zeros_like(x) if each is None else each.to_dense()
            for each, x in zip(found, wanted, strict=True)
        ]
        number = torch.as_tensor(value, dtype=torch.float64, device=device)
        there, told, *means = self._among.all_reduce([some, number, *own])
        *there, asked = there.tolist()
        if asked:
            self._weighed.reader.hear(asked)
        pairs = zip(there, means, strict=True)
        return tuple(mean if any_has else None for any_has, mean in pairs), told


def _is_one(given: Any) -> bool:
    return given is None or isinstance(given, torch.Tensor)


def _has_rows(x: Any, count: int) -> bool:
    rows = isinstance(x, torch.Tensor) and not isinstance(x, nn.Parameter) and x.dim() > 0
    return rows and len(x) == count
