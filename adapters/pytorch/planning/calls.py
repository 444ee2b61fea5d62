"""Which modules are called in a forward pass, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


@final
@dataclass(eq=False, slots=True)
class Call:
    """given: the storage of its first tensor, as a key; gave, took: bytes of its outputs and of
    that tensor; start, stop: operations done before and after."""

    name: str
    module: nn.Module
    given: int
    took: int
    start: int
    gave: int = 0
    stop: int = 0


@final
class Calls:
    """done: how many operations were done so far."""

    def __init__(self, model: nn.Module, done: Callable[[], int]) -> None:
        self._model = model
        self._done = done
        self._going: list[Call] = []
        self.made: list[Call] = []

    def owner(self) -> str:
        return self._going[-1].name if self._going else ""

    @contextmanager
    def noted(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for name, module in self._model.named_modules():
                begin = module.register_forward_pre_hook(self._begin(name), with_kwargs=True)
                end = module.register_forward_hook(self._end)
                hooks.callback(begin.remove)
                hooks.callback(end.remove)
            yield

    def _begin(self, name: str) -> Callable[..., None]:
        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            first = next(
                (x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)), None
            )
            key, took = (0, 0) if first is None else (first.untyped_storage()._cdata, size(first))
            call = Call(name, module, key, took, self._done())
            self.made.append(call)
            self._going.append(call)

        return begin

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self._going.pop()
        call.stop = self._done()
        call.gave = sum(size(x) for x in tree_leaves(output) if isinstance(x, torch.Tensor))


def size(tensor: torch.Tensor) -> int:
    """Bytes."""
    return tensor.numel() * tensor.element_size()


def units(model: nn.Module) -> dict[str, str]:
    """Module -> the unit it is in: an entry of the outermost list or sequence around it, else the
    model's own child. "" for the model and for lists."""
    found: dict[str, str] = {}
    kinds = dict(model.named_modules())
    for name in kinds:
        parts = name.split(".")
        at = 0
        while at < len(parts) - 1 and isinstance(
            kinds[".".join(parts[: at + 1])], (nn.ModuleList, nn.Sequential, nn.ModuleDict)
        ):
            at += 1
        whole = kinds[".".join(parts[: at + 1])] if name else model
        listed = at == len(parts) - 1 and isinstance(whole, (nn.ModuleList, nn.ModuleDict))
        found[name] = "" if not name or listed else ".".join(parts[: at + 1])
    return found
