"""A segment's values computed again in backward, by torch's own checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, final

from torch import nn
from torch.utils.checkpoint import checkpoint

from dream.adapters.pytorch.update.draws import Draws

Again = Callable[..., Any]
"""Either of those below."""


def again(function: Callable[..., Any], norms: list[nn.Module], *args: Any) -> Any:
    """`function(*args)`, computed again in backward. norms: whose statistics count it once."""
    contexts = lambda: (nullcontext(), _Afresh(partial(_counted_once, norms)))  # noqa: E731
    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


def again_in_threads(function: Callable[..., Any], norms: list[nn.Module], *args: Any) -> Any:
    """The same beside other threads, which draw from the same generator."""
    draws = Draws()
    contexts = lambda: (  # noqa: E731
        draws.kept(), _Afresh(partial(_counted_once, norms), draws.given),
    )  # fmt: skip
    return checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )


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
