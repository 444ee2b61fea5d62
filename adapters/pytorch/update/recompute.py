"""Layers whose values are computed again in backward instead of kept, by torch's own checkpoints:
the same numbers, dropout's masks included, and BatchNorm's statistics counted once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dream._errors import ConfigurationError, unknown
from dream.adapters.pytorch.call_hook import Wrapper, called_with, ensure_hook, unwrapped
from dream.adapters.pytorch.private import (
    OpOverload,
    TorchDispatchMode,
    is_in_place,
    tree_map,
    written_arguments,
)
from dream.adapters.pytorch.randomness.calls import patches
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.update import batch_norm

Again = Callable[..., Any]
"""Either of those below."""

_Drawn = tuple[list[torch.Tensor], Any]
"""The tensors that an operation wrote into, and what it gave."""


def again(function: Callable[..., Any], norms: list[nn.Module], *args: Any) -> Any:
    """`function(*args)`, computed again in backward. norms: whose statistics count it once."""
    second = _Afresh(partial(_counted_once, norms), *_drawing_as_now())
    return checkpoint(
        function, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), second)
    )


def again_in_threads(function: Callable[..., Any], norms: list[nn.Module], *args: Any) -> Any:
    """The same beside other threads, which draw from the same generator."""
    draws = RngReplay()
    second = _Afresh(partial(_counted_once, norms), *_drawing_as_now(), draws.given)
    return checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=False,
        context_fn=lambda: (draws.kept(), second),
    )  # fmt: skip


def _drawing_as_now() -> tuple[Callable[[], AbstractContextManager[Any]], ...]:
    """Contexts in which what is computed again draws for the rows that it draws for now."""
    return patches.standing, partial(current.again, current.call, current.memory)


@final
class _Afresh(AbstractContextManager[None]):
    """Contexts that are made each time they are entered: several backward passes may compute a
    segment again."""

    def __init__(self, *makers: Callable[[], AbstractContextManager[Any]]) -> None:
        self._makers, self._stack = makers, ExitStack()

    def __enter__(self) -> None:
        self._stack = ExitStack()
        for make in self._makers:
            self._stack.enter_context(make())

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)


@contextmanager
def _counted_once(norms: list[nn.Module]) -> Iterator[None]:
    held = [b.data for norm in norms for b in norm.buffers(recurse=False)]
    before = [b.clone() for b in held]
    try:
        yield
    finally:
        for buffer, value in zip(held, before, strict=True):
            buffer.copy_(value)


How = bool | str | Sequence[str]


_LEAST = 4


"""Elements of a chain that are worth cutting."""


def recompute(
    module: nn.Module,
    how: How,
    trains: Callable[[], bool],
    *,
    opened: Collection[str] = (),
    in_threads: bool = False,
) -> list[nn.Module]:
    """Have layers of a module recomputed; those layers. trains: whether a call is one of training,
    or one that a backward pass repeats. opened: the parts, by name, that are looked into and not
    called as one. in_threads: beside copies of the module."""
    kind = LayerRuns if how == "sqrt" else Recomputed
    chosen = _chosen(module, how, {module.get_submodule(name) for name in opened}) if how else []
    for layer in chosen:
        slot = ensure_hook(layer)
        inner = unwrapped(slot.inner, (Recomputed, LayerRuns))
        slot.inner = kind(layer, inner, trains, again_in_threads if in_threads else again)
    return chosen


def _chosen(module: nn.Module, how: How, opened: Collection[nn.Module]) -> list[nn.Module]:
    if how is True:
        return [part for layer in layers(module) for part in _closed(layer, opened)]
    found = _chains_or_raise(module) if how == "sqrt" else _named(module, [*_names(how)])
    for layer in found:
        if layer in opened:
            raise ConfigurationError(
                "A layer that is cut over ranks or devices, or looked into, is not computed as "
                f"one. Received: recompute={how!r}, and {type(layer).__name__} is. Name layers "
                "inside it, or pass recompute=True."
            )
    return found


def _names(how: How) -> Sequence[str]:
    assert not isinstance(how, (bool, str))
    return how


def _closed(layer: nn.Module, opened: Collection[nn.Module]) -> list[nn.Module]:
    """The outermost parts of a layer that are called as one."""
    if layer not in opened:
        return [layer]
    return [part for child in layer.children() for part in _closed(child, opened)]


@final
class Recomputed(Wrapper):
    """The calls of one layer."""

    def __init__(
        self, layer: nn.Module, inner: Callable[..., Any], trains: Callable[[], bool], again: Again
    ) -> None:
        super().__init__(inner)
        self._norms = batch_norm.norms(layer)
        self._trains, self._again = trains, again

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and self._trains()):
            return self.inner(*args, **kwargs)
        return self._again(partial(self.inner, **kwargs), self._norms, *args)


@final
class LayerRuns(Wrapper):
    """The calls of a chain of layers, in as many runs as each has layers. What goes into a run is
    kept, and the values inside the last."""

    def __init__(
        self, chain: nn.Module, inner: Callable[..., Any], trains: Callable[[], bool], again: Again
    ) -> None:
        super().__init__(inner)
        self._chain = chain
        self._trains, self._again = trains, again

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
            norms = [norm for layer in run for norm in batch_norm.norms(layer)]
            x = self._again(partial(_in_turn, run), norms, x)
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
            "layers in an nn.Sequential, or pass recompute=True."
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


@final
class RngReplay:
    """The draws of one segment of one copy, kept for when it is computed again: copies in threads
    share one generator, which cannot be set back for one of them."""

    def __init__(self) -> None:
        self._drawn: list[_Drawn] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around the first computation."""
        with _Keeping(self._drawn):
            yield

    @contextmanager
    def given(self) -> Iterator[None]:
        """Around another one, which draws what the first drew."""
        with _Giving(iter([*self._drawn])):
            yield


@final
class _Keeping(TorchDispatchMode):
    def __init__(self, drawn: list[_Drawn]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn = drawn

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if _draws(func):
            own = _copied(output)
            self._drawn.append(([x.clone() for x in _written(func, args, kwargs)], own))
        return output


@final
class _Giving(TorchDispatchMode):
    def __init__(self, drawn: Iterator[_Drawn]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn = drawn

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _draws(func):
            return func(*args, **kwargs)
        written, output = next(self._drawn)
        places = _written(func, args, kwargs)
        for place, value in zip(places, written, strict=True):
            place.copy_(value)
        return places[0] if is_in_place(func) else _copied(output)


def _draws(func: Any) -> bool:
    return isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded in func.tags


def _written(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that an operation writes into."""
    declared = written_arguments(func)
    given = dict(zip((name for name, _ in declared), args, strict=False)) | kwargs
    return [given[name] for name, written in declared if written and name in given]


def _copied(output: Any) -> Any:
    """Clone the tensors: what is done to them later is not done to the copy."""
    return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, output)
