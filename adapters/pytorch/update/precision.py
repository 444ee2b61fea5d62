"""Models in a lower precision, and the float32 weights that optimizers step on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from dream.adapters.pytorch.call_hook import ModuleSet
from dream.adapters.pytorch.private import BatchNorm, tables, to_local, tree_map, version_of
from dream.update.precision import Precision as Row


@final
class _MasterWeight:
    """A parameter in float32, of which the model has a rounded copy.

    value: of a parameter, or of this rank's piece of one. version: of the parameter when it was
    last this one's rounding.
    """

    def __init__(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        self.value = nn.Parameter(value)
        self.version = version_of(parameter)

    def take(self, parameter: nn.Parameter, scale: float) -> None:
        """The parameter's gradient, and its values where weights were loaded."""
        self.follow(parameter)
        gradient = parameter.grad
        self.value.grad = None if gradient is None else gradient.float().div_(scale)

    def follow(self, parameter: nn.Parameter) -> None:
        if not self._rounds_to(parameter):
            _copy(parameter, self.value)
            self.version = version_of(parameter)

    def give(self, parameter: nn.Parameter) -> None:
        _copy(self.value, parameter)
        self.version = version_of(parameter)
        self.value.grad = None

    def _rounds_to(self, parameter: nn.Parameter) -> bool:
        """Whether nobody has written into the parameter. Torch counts no changes of a piece."""
        piece = to_local(parameter)
        if piece is parameter:
            return self.version == version_of(parameter)
        return torch.equal(piece, to_local(self.value).to(piece.dtype))


@torch.no_grad()
def _copy(of: nn.Parameter, to: nn.Parameter) -> None:
    to_local(to).data.copy_(to_local(of))


@final
class MasterWeights:
    """The master weights of one strategy's models. An optimizer has them for its parameters while
    it acts, so its state is float32 too. (A parameter itself cannot change its type and back:
    autograd would forget what is attached to its gradient.)"""

    def __init__(self) -> None:
        self._of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def keep(self, parameter: nn.Parameter) -> None:
        """The values of a parameter that is about to be cast."""
        self._of[parameter] = _MasterWeight(parameter, parameter.detach().float().clone())

    def move(
        self,
        old: nn.Parameter,
        new: nn.Parameter,
        cut: Callable[[torch.Tensor, nn.Parameter], torch.Tensor],
    ) -> None:
        """A parameter was cut. cut: a tensor like the old one -> its piece that is like the new."""
        master: _MasterWeight | None = self._of.pop(old, None)
        if master is not None:
            self._of[new] = _MasterWeight(new, cut(master.value.detach(), new))

    def of(self, parameter: nn.Parameter) -> nn.Parameter | None:
        master: _MasterWeight | None = self._of.get(parameter)
        return None if master is None else master.value

    def current(self, parameter: nn.Parameter) -> nn.Parameter | None:
        """Return a parameter's master, which has what was written into the parameter."""
        master: _MasterWeight | None = self._of.get(parameter)
        if master is None:
            return None
        master.follow(parameter)
        return master.value

    def rounded(self, parameter: nn.Parameter) -> None:
        """Round a parameter from its master, which was written to."""
        self._of[parameter].give(parameter)

    @contextmanager
    def in_place(self, optimizer: Optimizer, scale: float) -> Iterator[None]:
        """Inside, the optimizer's parameters are masters, and gradients divided by `scale`; then
        the parameters are rounded again."""
        own = [group["params"] for group in optimizer.param_groups]
        pairs: list[tuple[nn.Parameter, _MasterWeight]] = [
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


_HALF = (torch.float16, torch.bfloat16)


@final
class ModelPrecision:
    """The precision of one strategy's models.

    device: "cpu" or "cuda". masters: None where there are none.
    """

    def __init__(self, row: Row, device: str, masters: MasterWeights | None) -> None:
        self._model = None if row.model is None else _type(row.model)
        self._functions = None if row.functions is None else _type(row.functions)
        self._keeps_norms = row.norms and self._model in _HALF
        self._device, self.masters = device, masters
        self._cast_before = ModuleSet()

    @property
    def casts_models(self) -> bool:
        return self._model is not None

    def casting(self) -> AbstractContextManager[Any]:
        """Cast what runs inside, where a model is called in training."""
        if self._functions is None:
            return nullcontext()
        return torch.autocast(self._device, self._functions)

    def cast(self, module: nn.Module) -> None:
        """Parameters and buffers in the model's type, in place. Done again it changes nothing."""
        if self._model is None:
            return
        for part in module.modules():
            self._cast_before.add(part)
            if not (self._keeps_norms and isinstance(part, BatchNorm)):
                self._cast(part, self._model)

    def apart(self, module: nn.Module) -> list[nn.Module]:
        """The parts that keep a type of their own."""
        return [m for m in module.modules() if self._keeps_norms and isinstance(m, BatchNorm)]

    def call(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A model's output, computed in this precision, as float32."""
        with self.casting():
            args, kwargs = self.taken((args, kwargs))
            return self.restored(forward(*args, **kwargs))

    def call_beside(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call that is no training: a module that was cast is of its type there too."""
        run = self.call if module in self._cast_before else _called
        return run(forward, args, kwargs)

    def taken(self, given: Any) -> Any:
        """Cast what a model is called with to its type."""
        if self._model is None:
            return given
        return tree_map(lambda x: x.to(self._model) if _floats(x) else x, given)

    def restored(self, output: Any) -> Any:
        """A model's output in float32."""
        return tree_map(_whole, output)

    def _cast(self, part: nn.Module, dtype: torch.dtype) -> None:
        for parameter in part.parameters(recurse=False):
            if _floats(parameter) and parameter.dtype != dtype:
                if self.masters is not None:
                    self.masters.keep(parameter)
                parameter.grad = None
                parameter.data = parameter.data.to(dtype)
        for name, buffer in part.named_buffers(recurse=False):
            if _floats(buffer):
                tables(part)[2][name] = buffer.to(dtype)


def _type(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _called(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return forward(*args, **kwargs)


def _floats(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _whole(x: Any) -> Any:
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in _HALF else x
