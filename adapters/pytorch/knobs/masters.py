"""Master weights: the float32 values that an optimizer steps on, of which a model's parameters are
roundings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary


@final
class _Master:
    """version: of the parameter when it was last this one's rounding."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.value = nn.Parameter(parameter.detach().float().clone())
        self.version = parameter._version

    def take(self, parameter: nn.Parameter, scale: float) -> None:
        """The parameter's gradient, and its values where weights were loaded."""
        if self.version != parameter._version:
            self.value.data.copy_(parameter.data)
        gradient = parameter.grad
        self.value.grad = None if gradient is None else gradient.float().div_(scale)

    def give(self, parameter: nn.Parameter) -> None:
        parameter.data.copy_(self.value.data)
        self.version = parameter._version
        self.value.grad = None


@final
class Masters:
    """Of one strategy's models. An optimizer has them for its parameters while it acts, so its
    state is float32 too. (A parameter itself cannot change its type and back: autograd would
    forget what hangs on its gradient.)"""

    def __init__(self) -> None:
        self._of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def keep(self, parameter: nn.Parameter) -> None:
        """The values of a parameter that is about to be cast."""
        self._of[parameter] = _Master(parameter)

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
