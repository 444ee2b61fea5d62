"""Numbers that the loop itself reads and adds up, of which a rank has a part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch

from dream._log import logger
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Hooks

_OWN_SUMS = (
    "what the loop itself adds up over an epoch is of this rank's rows alone: running += "
    "loss.item() * len(x) comes to a part of the sum, so divide it by the rows that were counted, "
    "not by len(data); other sums, as of right answers, are made global by "
    'strategy.communicator.all_reduce(torch.tensor(own), op="sum"). So is a loss that is logged '
    "where another made of it went backward, as (loss / 4).backward(), or a part of one"
)
number_of: Callable[[torch.Tensor], float] = torch.Tensor.item
numbers_of: Callable[[torch.Tensor], list[float]] = torch.Tensor.tolist
"""As they were before any block watched them: at every step, dream's reads are not the loop's."""

_LIBRARIES = ("torch.", "dream.", "keras.")


@final
class ReadNumbers:
    """Says so once, where a loop that trains on shares reads a number, or takes one off its graph
    to add it up."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._said = False

    def subscribe(self, hooks: Hooks) -> None:
        hooks.wrap("read", self._noting)

    def _noting(self, read: Callable[..., Any]) -> Callable[..., Any]:
        keeps = read.__name__ == "detach"  # of what is no number that is a matter of the model's

        @wraps(read)
        def wrapped(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not (self._said or (keeps and x.dim()) or _trained(x)) and self._reads_shares():
                caller = sys._getframe(1).f_globals.get("__name__", "")
                if not caller.startswith(_LIBRARIES):
                    self._said = True
                    logger.info(_OWN_SUMS)
            return read(x, *args, **kwargs)

        return wrapped

    def _reads_shares(self) -> bool:
        if torch.compiler.is_compiling():
            return False
        return torch.is_grad_enabled() and self._shares.parted


def _trained(x: torch.Tensor) -> bool:
    """Whether this is a parameter, which is the same on every rank."""
    return x.is_leaf and x.requires_grad
