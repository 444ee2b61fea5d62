"""A backward pass whose gradients are added up over ranks of two frameworks, as one list in the
canonical order: the one that TensorFlow's side adds up at a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dream.collectives import Communicator
from dream.mixed.order import InOrder

_NAN = float("nan")


@final
class BackwardSum:
    """Each rank sends its mean loss, gradients and running statistics times the samples that they
    are means over, and that number; the quotient of the sums is the global mean.

    parameters, running: by name. mean_loss: of the last backward, global; nan where a rank's loop
    has not told it.
    """

    def __init__(
        self,
        order: InOrder,
        parameters: Mapping[str, nn.Parameter],
        running: Mapping[str, torch.Tensor],
        communicator: Communicator,
        loss: Callable[[], torch.Tensor | None],
    ) -> None:
        self._order = order
        self._parameters = parameters
        self._running = running
        self._adding = communicator.unchecked()  # the layout has been agreed on
        self._loss = loss
        self.mean_loss = torch.tensor(_NAN)
        self.steps = 0
        self._count: float | None = None
        self._came: dict[str, torch.Tensor] = {}
        self._before: dict[str, torch.Tensor] = {}
        self._arrived: list[str] = []
        self._handles = [h for name, p in parameters.items() for h in self._watched(name, p)]

    def arm(self, count: float) -> None:
        """The next backward is reduced; its means are over so many samples."""
        self._count = count
        self._came.clear()
        self._before.clear()
        self._arrived.clear()

    def recount(self, count: float) -> None:
        """The user says what the loss is the mean over."""
        if self._count is not None:
            self._count = count

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watched(self, name: str, parameter: nn.Parameter) -> Sequence[RemovableHandle]:
        return (
            parameter.register_hook(partial(self._coming, name, parameter)),
            parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name)),
        )

    def _coming(self, name: str, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        if self._count is not None:
            self._came[name] = gradient
            if parameter.grad is not None:
                self._before[name] = parameter.grad.clone()

    def _accumulated(self, name: str, _: torch.Tensor) -> None:
        if self._count is None:
            return
        if not self._arrived:
            torch.autograd.Variable._execution_engine.queue_callback(self._reduce)
        self._arrived.append(name)

    def _reduce(self) -> None:
        """At the end of backward: what came is made global."""
        count, self._count = self._count, None
        assert count is not None
        gradients = {name: self._came[name] for name in self._arrived}
        with torch.no_grad():
            value, listed, running = self._summed(count, gradients)
        self.mean_loss = value
        self.steps += 1
        for name, mean in self._order.named(listed, self._arrived, "gradient").items():
            self._write(name, mean)
        for name, mean in self._order.named(running, [*self._running], "value").items():
            self._running[name].copy_(mean)

    def _summed(
        self, count: float, gradients: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """(mean loss, mean gradients, mean running statistics) over all ranks' samples."""
        listed = self._order.listed(gradients, "gradient")
        running = self._order.listed(self._running, "value")
        loss = self._loss()
        value = torch.tensor(_NAN) if loss is None else loss
        sent = [_times(x, count) for x in (value, *listed, *running)]
        *sums, total = self._adding.all_reduce([*sent, torch.tensor(float(count))], "sum")
        means = [x / total.to(x.dtype) if total else x for x in sums]
        cut = 1 + len(listed)
        return means[0], means[1:cut], means[cut:]

    def _write(self, name: str, mean: torch.Tensor) -> None:
        """In place of what backward has accumulated, beside what was there before."""
        gradient = self._parameters[name].grad
        assert gradient is not None
        gradient.copy_(mean)
        if name in self._before:
            gradient.add_(self._before[name])


def _times(x: torch.Tensor, count: float) -> torch.Tensor:
    """Exactly 0 where nothing is counted, whatever x is."""
    return x.detach() * count if count else torch.zeros_like(x)
