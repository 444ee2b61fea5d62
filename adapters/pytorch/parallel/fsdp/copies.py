"""Copies of modules that FSDP2 has sharded."""

from __future__ import annotations

from typing import Any, final

from torch import nn

from dream.adapters.pytorch.call_hook import CallHook
from dream.adapters.pytorch.module import ModuleRegistry
from dream.adapters.pytorch.private import recomputing


@final
class PendingCopy(CallHook):
    """Takes the calls of a copy of a sharded module, which can be called once it is sharded too."""

    def __init__(self, module: nn.Module, registry: ModuleRegistry) -> None:
        super().__init__(module)
        self._registry = registry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._registry.inside or recomputing():
            return self.inner(*args, **kwargs)
        return self._registry.distribute(self.module)(*args, **kwargs)
