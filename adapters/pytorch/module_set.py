"""Sets of modules, which hold none of them alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final
from weakref import ref

from torch import nn


@final
class ModuleSet:
    """Modules in the order in which they came. By identity: a metric of torchmetrics, say, hashes
    and compares by what it holds."""

    def __init__(self) -> None:
        self._refs: dict[int, ref[nn.Module]] = {}

    def add(self, module: nn.Module) -> None:
        key, refs = id(module), self._refs
        if key not in refs:
            refs[key] = ref(module, lambda _: refs.pop(key, None))

    def clear(self) -> None:
        self._refs.clear()

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._refs

    def __iter__(self) -> Iterator[nn.Module]:
        found = [held() for held in self._refs.values()]
        return iter([module for module in found if module is not None])
