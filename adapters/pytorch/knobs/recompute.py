"""Layers whose values are computed again in backward instead of kept, by torch's own checkpoints:
the same numbers, dropout's masks included, and BatchNorm's statistics counted once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dream._errors import ConfigurationError, unknown
from dream.adapters.pytorch import buffers
from dream.adapters.pytorch.slot import Around, Slot, called_with, slot_of, unwrapped

How = bool | str | Sequence[str]
_LEAST = 4
"""Elements of a chain that are worth cutting."""


def recompute(module: nn.Module, how: How, trains: Callable[[], bool]) -> None:
    """Have layers of a module recomputed. trains: whether a call is one of training, or one that a
    backward pass repeats."""
    if how == "sqrt":
        for chain in _chains_or_raise(module):
            _put(chain, Runs, trains)
    elif how is True:
        for layer in layers(module):
            _put(layer, Recomputed, trains)
    elif how:
        for layer in _named(module, [*how]):
            _put(layer, Recomputed, trains)


def _put(
    module: nn.Module, kind: type[Recomputed] | type[Runs], trains: Callable[[], bool]
) -> None:
    slot = slot_of(module)
    assert isinstance(slot, Slot)
    if not isinstance(slot.inner, (Recomputed, Runs)):
        slot.inner = kind(module, slot.inner, trains)
    else:
        slot.inner = kind(module, unwrapped(slot.inner, (Recomputed, Runs)), trains)


@final
class Recomputed(Around):
    """The calls of one layer."""

    def __init__(
        self, layer: nn.Module, inner: Callable[..., Any], trains: Callable[[], bool]
    ) -> None:
        super().__init__(inner)
        self._norms = buffers.norms(layer)
        self._trains = trains

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and self._trains()):
            return self.inner(*args, **kwargs)
        return again(partial(self.inner, **kwargs), self._norms, *args)


@final
class Runs(Around):
    """The calls of a chain of layers, in as many runs as each has layers. What goes into a run is
    kept, and the values inside the last."""

    def __init__(
        self, chain: nn.Module, inner: Callable[..., Any], trains: Callable[[], bool]
    ) -> None:
        super().__init__(inner)
        self._chain = chain
        self._trains = trains

    def __call__(self, *args: Any) -> Any:
        (x,) = args
        if not (torch.is_grad_enabled() and self._trains()):
            return self.inner(x)
        return called_with(self._chain, self._in_runs, self.inner, x)

    def _in_runs(self, x: Any) -> Any:
        layers = [*self._chain.children()]
        size = round(math.sqrt(len(layers)))
        for first in range(0, len(layers), size):
            run = layers[first : first + size]
            if first + size >= len(layers):
                return _in_turn(run, x)
            x = again(partial(_in_turn, run), [n for m in run for n in buffers.norms(m)], x)
        return x


def layers(module: nn.Module) -> list[nn.Module]:
    """The parts that a model is made of: its children, and the elements of lists and of chains of
    them. A chain of plain layers is one part, save where that is the whole model."""
    found = [part for child in module.children() for part in _parts(child)]
    worth = [part for part in found if [*part.children()] or isinstance(part, nn.RNNBase)]
    return worth or [part for part in found if next(part.parameters(), None) is not None]


def _parts(module: nn.Module) -> list[nn.Module]:
    children = [*module.children()]
    chain = isinstance(module, nn.Sequential) and any([*child.children()] for child in children)
    if chain or isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return [part for child in children for part in _parts(child)]
    return [module]


def _chains_or_raise(module: nn.Module) -> list[nn.Module]:
    chains = _chains(module)
    if not chains:
        raise ConfigurationError(
            "recompute='sqrt' cuts chains of layers in runs, and there is none. Received: "
            f"{type(module).__name__} without an nn.Sequential of {_LEAST} layers or more. Put its "
            "layers in an nn.Sequential, or say recompute=True."
        )
    return chains


def _chains(module: nn.Module) -> list[nn.Module]:
    """The outermost ones."""
    plain = type(module).forward is nn.Sequential.forward
    if plain and len([*module.children()]) >= _LEAST:
        return [module]
    return [chain for child in module.children() for chain in _chains(child)]


def _named(module: nn.Module, names: list[str]) -> list[nn.Module]:
    known = dict(module.named_modules())
    for name in names:
        if name not in known:
            raise unknown(f"layer of {type(module).__name__} to recompute", name, known)
    return [known[name] for name in names]


def _in_turn(layers: list[nn.Module], x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def again(function: Callable[..., Any], norms: list[nn.Module], *args: Any) -> Any:
    """`function(*args)`, computed again in backward. norms: whose statistics count it once."""
    contexts = partial(_contexts, norms)
    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


def _contexts(
    norms: list[nn.Module],
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Around the first computation, and around the one in backward."""
    return nullcontext(), _counted_once(norms)


@contextmanager
def _counted_once(norms: list[nn.Module]) -> Iterator[None]:
    held = [b.data for norm in norms for b in norm.buffers(recurse=False)]
    before = [b.clone() for b in held]
    try:
        yield
    finally:
        for buffer, value in zip(held, before, strict=True):
            buffer.copy_(value)
