"""Backwards of a script's own `autograd.Function`s, which are to see what one device gives them.

Inside a backward pass the rows of a rank's share have gradients as many times as large as in the
global gradient, by which the mean over the ranks is right. What a clamp makes of those is no
multiple of what it makes of the gradient itself: such a node is given it undone, and what it
returns is multiplied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

import torch
from torch.autograd.function import (
    AUTOGRAD_FUNCTION_COUNTER,
    BackwardCFunction,
    Function,
    FunctionMeta,
)

from dream._log import logger
from dream.adapters.pytorch.private import FUNCTION

Gradients = tuple[Any, ...]
_OTHERS = ("torch", "dream")
_COMPILED = (
    "a function of the script's own is in compiled code, where its backward is given this rank's "
    "rows %d times as large as in the global gradient: a clamp of those is another one. Put "
    "@torch.compiler.disable on what calls it"
)


@final
class ScriptFunctions:
    """Has a script's own autograd functions see the gradients of one device. times: how many times
    as large as in the global gradient the rows of the backward pass are that is about to start."""

    def __init__(self, times: Callable[[], int]) -> None:
        self._times = times
        self._classes, self._some, self._said = "", False, False
        self._watch: Callable[..., None] | None = None
        self._inside: list[_Undone] = []

    @property
    def idle(self) -> bool:
        """Whether no pass needs to be looked at: there are none, and none runs."""
        if FunctionMeta.__init__ is not self._watch:  # in one piece: it is asked at every step
            self._look()
        return not (self._some or self._inside)

    def around(self, run: Callable[..., None]) -> Callable[..., None]:
        """`torch.autograd.backward`, in which gradients are undone for the script's functions."""

        @wraps(run)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if self._inside:
                # a function that runs a pass in its own backward adds to parameters there
                self._inside[-1].repeats = True
                times = self._inside[-1].times
                run(tensors, _multiplied(tensors, grad_tensors, times), *args, **kwargs)
                return
            if not self._are_there():
                run(tensors, grad_tensors, *args, **kwargs)
                return
            with self._undone(tensors):
                run(tensors, grad_tensors, *args, **kwargs)

        return backward

    def telling(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """What torch.compile makes of such a function, which no backward pass can tell from the
        rest of what is compiled."""

        @wraps(apply)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            times = self._times()
            if times > 1 and not self._said:
                self._said = True
                logger.info(_COMPILED, times)
            return apply(*args, **kwargs)

        return compiled

    def watching(self, init: Callable[..., None]) -> Callable[..., None]:
        """What makes a class of such a function, which is told of it while the block is open."""
        self._look()

        @wraps(init)
        def made(kind: type[Any], *args: Any, **kwargs: Any) -> None:
            init(kind, *args, **kwargs)
            self._some = self._some or _is_scripts(kind)

        self._watch = made
        return made

    def _are_there(self) -> bool:
        """Whether there are such classes at all: a graph is looked through only where there are,
        and then in each pass, since a script may come to use them at any time."""
        if FunctionMeta.__init__ is not self._watch:  # after the block
            self._look()
        return self._some

    def _look(self) -> None:
        """Look through all classes there are, where some were made since. Torch has hundreds, whose
        list alone a small model's step would feel: torch's own count of them is looked at."""
        classes = repr(AUTOGRAD_FUNCTION_COUNTER)
        if classes != self._classes:
            self._classes, self._some = classes, any(map(_is_scripts, _below(Function)))

    @contextmanager
    def _undone(self, roots: Any) -> Iterator[None]:
        times = self._times()
        nodes = [] if times == 1 else [*_scripts_own(roots)]
        handles = [handle for node in nodes for handle in _Undone(times, self._inside).put(node)]
        try:
            yield
        finally:
            self._inside.clear()
            for handle in handles:
                handle.remove()


@final
class _Undone:
    """Undoes at one node what a gradient was multiplied by. repeats: whether it runs a backward
    pass itself, as recomputations do."""

    def __init__(self, times: int, inside: list[_Undone]) -> None:
        self.times, self.repeats = times, False
        self._inside = inside

    def put(self, node: Any) -> Sequence[Any]:
        return node.register_prehook(self._before), node.register_hook(self._after)

    def _before(self, gradients: Gradients) -> Gradients | None:
        if not any(map(_of_rows, gradients)):
            return None
        self._inside.append(self)
        return tuple(None if g is None else g / self.times for g in gradients)

    def _after(self, returned: Gradients, _: Gradients) -> Gradients | None:
        if not self._inside or self._inside[-1] is not self:
            return None  # a loss: what it starts from is no row's
        self._inside.pop()
        if self.repeats:
            return None
        return tuple(None if g is None else g * self.times for g in returned)


def _of_rows(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and gradient.dim() > 0


def _multiplied(roots: Any, given: Any, times: int) -> list[Any]:
    """The gradients that a pass starts from, multiplied."""
    roots = [roots] if isinstance(roots, torch.Tensor) else [*roots]
    listed = [given] * len(roots) if given is None or isinstance(given, torch.Tensor) else [*given]
    return [
        times * (torch.ones_like(root) if g is None else g)
        for root, g in zip(roots, listed, strict=True)
    ]


def _scripts_own(roots: Any) -> Iterator[Any]:
    """The nodes below these roots whose functions are neither torch's nor dream's."""
    left = [x.grad_fn for x in ([roots] if isinstance(roots, torch.Tensor) else [*roots])]
    seen: set[Any] = set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [after for after, _ in node.next_functions]
        if isinstance(node, BackwardCFunction) and _is_scripts(getattr(node, FUNCTION)):
            yield node


def _is_scripts(function: type[Any]) -> bool:
    return str(function.__module__).partition(".")[0] not in _OTHERS


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
