"""The random draws of layers, kept for when they are computed again. Copies of a model in threads
share one generator, which cannot be set back for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch

from dream.adapters.pytorch.private import (
    OpOverload,
    TorchDispatchMode,
    is_in_place,
    tree_map,
    written_arguments,
)

_Drawn = tuple[list[torch.Tensor], Any]
"""The tensors that an operation wrote into, and what it gave."""


@final
class RngReplay:
    """The draws of one segment of one copy."""

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
