"""Models in a lower precision, as `dream/update/precision.py` says: calls under autocast, or models
cast. What comes out of them is float32, so that a loss is computed as before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from dream.adapters.pytorch.update.masters import Masters
from dream.adapters.pytorch.update.scaling import Scaling
from dream.update.precision import Precision as Row

_HALF = (torch.float16, torch.bfloat16)


@final
class Precision:
    """Of one strategy's models.

    device: "cpu" or "cuda". masters, scaling: None where there are none.
    """

    def __init__(
        self, row: Row, device: str, masters: Masters | None, scaling: Scaling | None
    ) -> None:
        self._model = None if row.model is None else _type(row.model)
        self._functions = None if row.functions is None else _type(row.functions)
        self._keeps_norms = row.norms and self._model in _HALF
        self._device, self.masters, self.scaling = device, masters, scaling
        self._cast_before: WeakSet[nn.Module] = WeakSet()

    @property
    def casts_models(self) -> bool:
        return self._model is not None

    def casting(self) -> AbstractContextManager[Any]:
        """Where a model is called in training."""
        if self._functions is None:
            return nullcontext()
        return torch.autocast(self._device, self._functions)

    def cast(self, module: nn.Module) -> None:
        """Parameters and buffers in the model's type, in place. Done again it changes nothing."""
        if self._model is None:
            return
        for part in module.modules():
            self._cast_before.add(part)
            if not (self._keeps_norms and isinstance(part, _BatchNorm)):
                self._cast(part, self._model)

    def apart(self, module: nn.Module) -> list[nn.Module]:
        """The parts that keep a type of their own."""
        return [m for m in module.modules() if self._keeps_norms and isinstance(m, _BatchNorm)]

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
        """What a model is called with, in its type."""
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
                part._buffers[name] = buffer.to(dtype)


def _type(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _called(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return forward(*args, **kwargs)


def _floats(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _whole(x: Any) -> Any:
    return x.float() if isinstance(x, torch.Tensor) and x.dtype in _HALF else x
