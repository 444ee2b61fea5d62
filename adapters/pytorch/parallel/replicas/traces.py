"""Why copies of a module cannot share its calls: each would see a part of the batch, and what a
call leaves beside its output would be lost with the copies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Sized
from typing import Any, final

import torch
from torch import nn

from dream.adapters.pytorch.private import has_hooks, tables, version_of
from dream.adapters.pytorch.update import batch_norm


def refusal(module: nn.Module) -> str:
    """Why its calls are not shared, in words that follow its name; empty where they may be."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule) or type(part).__name__ == "OptimizedModule":
            return "is compiled"
        if has_hooks(part):
            return f"has a hook on {type(part).__name__} {name!r}, which is to see the whole batch"
    return ""


@final
class Traces:
    """Watches one call of copies."""

    def __init__(self, copies: Sequence[nn.Module]) -> None:
        self._copies = copies
        self._written = [*_tensors(copies)]
        self._versions = [version_of(tensor) for _, tensor in self._written]
        parts = [part for copy in copies for part in copy.modules()]
        self._held = [_held(part) for part in parts]
        self._alive = [[*vars(part).values()] for part in parts]  # else others could get their ids

    def found(self) -> str:
        """What the call has left behind, in words that follow the module's name; empty where
        there is nothing."""
        for (name, tensor), before in zip(self._written, self._versions, strict=True):
            if version_of(tensor) != before:
                return f"writes to {name} in its forward pass"
        parts = [part for copy in self._copies for part in copy.modules()]
        for part, held in zip(parts, self._held, strict=True):
            after = _held(part)
            if after != held:
                names = sorted(name for name, _ in after.items() ^ held.items())
                return f"keeps what a call gives, as {type(part).__name__}.{names[0]}"
        return ""


def _tensors(copies: Sequence[nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, and buffers other than a normalisation's, whose parts are brought together."""
    for copy in copies:
        settled = {id(b) for norm in batch_norm.norms(copy) for b in norm.buffers(recurse=False)}
        yield from copy.named_parameters()
        for name, buffer in copy.named_buffers():
            if id(buffer) not in settled:
                yield name, buffer


def _held(part: nn.Module) -> dict[str, Any]:
    """A module's own attributes: which objects they are, and how long."""
    children, parameters, buffers = tables(part)
    known: Collection[str] = {*children, *parameters, *buffers}
    return {
        name: (id(value), len(value) if isinstance(value, Sized) and _grows(value) else None)
        for name, value in vars(part).items()
        if name not in known
    }


def _grows(value: object) -> bool:
    return not isinstance(value, (torch.Tensor, str, bytes))
