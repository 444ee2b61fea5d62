"""What of a model no optimizer holds: buffers and frozen parameters start as rank 0's, too."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, final

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from dream._errors import Desynchronized
from dream.adapters.pytorch.keras.refusal import refuse_keras
from dream.adapters.pytorch.tensors import dump, load

_SHAPELESS = (UninitializedBuffer, UninitializedParameter)


@final
class Rest:
    """The tensors of the modules that the block has seen, in the order these were made."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[nn.Module]] = []

    def wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        """`Module.__init__` that notes the module."""

        @wraps(init)
        def wrapped(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            refuse_keras(module, "parameter_server")
            init(module, *args, **kwargs)
            self._modules.append(weakref.ref(module))

        return wrapped

    def add(self, model: nn.Module) -> None:
        """A module that was made before the block."""
        self._modules.extend(map(weakref.ref, model.modules()))

    def save(self, held: list[nn.Parameter]) -> bytes:
        """All tensors but those that the optimizer holds."""
        return dump(list(self._tensors(held)))

    def load(self, saved: bytes, held: list[nn.Parameter]) -> None:
        """Take rank 0's."""
        told = load(saved)
        own = list(self._tensors(held))
        if [t.shape for t in told] != [t.shape for t in own]:
            raise Desynchronized(
                "The workers' models differ in buffers or frozen parameters. Received: "
                f"{len(own)} such tensors here, {len(told)} on rank 0, or other shapes. Build the "
                "same model on every rank."
            )
        with torch.no_grad():
            for tensor, first in zip(own, told, strict=True):
                tensor.copy_(first)

    def _tensors(self, held: list[nn.Parameter]) -> Iterator[torch.Tensor]:
        seen = {id(parameter) for parameter in held}
        for known in self._modules:
            module = known()
            if module is None:
                continue
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if id(tensor) not in seen and not isinstance(tensor, _SHAPELESS):
                    seen.add(id(tensor))
                    yield tensor
