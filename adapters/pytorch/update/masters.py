"""Master weights: the float32 values that an optimizer steps on, of which a model's parameters are
roundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from dream.adapters.pytorch.local import local_of


@final
class _Master:
    """value: of a parameter, or of this rank's piece of one. version: of the parameter when it was
    last this one's rounding."""

    def __init__(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        self.value = nn.Parameter(value)
        self.version = parameter._version

    def take(self, parameter: nn.Parameter, scale: float) -> None:
        """The parameter's gradient, and its values where weights were loaded."""
        if not self._rounds_to(parameter):
            _copy(parameter, self.value)
        gradient = parameter.grad
        self.value.grad = None if gradient is None else gradient.float().div_(scale)

    def give(self, parameter: nn.Parameter) -> None:
        _copy(self.value, parameter)
        self.version = parameter._version
        self.value.grad = None

    def _rounds_to(self, parameter: nn.Parameter) -> bool:
        """Whether nobody has written into the parameter. Torch counts no changes of a piece."""
        piece = local_of(parameter)
        if piece is parameter:
            return self.version == parameter._version
        return torch.equal(piece, local_of(self.value).to(piece.dtype))


@torch.no_grad()
def _copy(of: nn.Parameter, to: nn.Parameter) -> None:
    local_of(to).data.copy_(local_of(of))


@final
class Masters:
    """Of one strategy's models. An optimizer has them for its parameters while it acts, so its
    state is float32 too. (A parameter itself cannot change its type and back: autograd would
    forget what is attached to its gradient.)"""

    def __init__(self) -> None:
        self._of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def keep(self, parameter: nn.Parameter) -> None:
        """The values of a parameter that is about to be cast."""
        self._of[parameter] = _Master(parameter, parameter.detach().float().clone())

    def move(
        self,
        old: nn.Parameter,
        new: nn.Parameter,
        cut: Callable[[torch.Tensor, nn.Parameter], torch.Tensor],
    ) -> None:
        """A parameter was cut. cut: a tensor like the old one -> its piece that is like the new."""
        master: _Master | None = self._of.pop(old, None)
        if master is not None:
            self._of[new] = _Master(new, cut(master.value.detach(), new))

    def of(self, parameter: nn.Parameter) -> nn.Parameter | None:
        master: _Master | None = self._of.get(parameter)
        return None if master is None else master.value

    @contextmanager
    def in_place(self, optimizer: Optimizer, scale: float) -> Iterator[None]:
        """Inside, the optimizer's parameters are masters, and gradients divided by `scale`; then
        the parameters are rounded again."""
        own = [group["params"] for group in optimizer.param_groups]
        pairs: list[tuple[nn.Parameter, _Master]] = [
            (p, self._of[p]) for parameters in own for p in parameters if p in self._of
        ]
        for parameter, master in pairs:
            master.take(parameter, scale)
            if parameter in optimizer.state:  # it was loaded before the parameter was cast
                optimizer.state[master.value] = optimizer.state.pop(parameter)
        for group in optimizer.param_groups:
            group["params"] = [self._stand_in(p) for p in group["params"]]
        try:
            yield
        finally:
            for group, parameters in zip(optimizer.param_groups, own, strict=True):
                group["params"] = parameters
            for parameter, master in pairs:
                master.give(parameter)

    def _stand_in(self, parameter: nn.Parameter) -> nn.Parameter:
        master = self.of(parameter)
        return parameter if master is None else master
