"""Numbers that the loop itself reads and adds up, of which a rank has a part."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from functools import cache, wraps
from types import CodeType, FrameType
from typing import Any, final

import torch

from dream._log import logger
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.private import be_whole
from dream.collectives import Communicator

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

_LIBRARIES = ("torch.", "dream.", "keras.", "wandb.", "mlflow.")
_WEIGHS = {"len", "numel", "shape", "size", "update"}
"""Names by which code comes to weigh a number by a batch's rows: of sizes, and of meters."""


def is_global(loss: torch.Tensor, among: Communicator) -> torch.Tensor:
    """Mark a loss that holds its value over all ranks, if they are several; return it."""
    be_whole(loss)
    if among.world_size > 1:
        loss._dream_global = True  # type: ignore[attr-defined]
    return loss


@final
class ReadNumbers:
    """Says so once, where a loop that trains on shares reads a number, or takes one off its graph
    to add it up: any but a global loss, and that where it may be weighed by a rank's rows."""

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
                caller = sys._getframe(1)
                own = not _of_library(caller) and (
                    not hasattr(x, "_dream_global") or any(map(_weighs, _codes(caller)))
                )
                if own:
                    self._said = True
                    logger.info(_OWN_SUMS)
            return read(x, *args, **kwargs)

        return wrapped

    def _reads_shares(self) -> bool:
        if torch.compiler.is_compiling():
            return False
        return torch.is_grad_enabled() and self._shares.parted


def _of_library(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith(_LIBRARIES)


def _codes(frame: FrameType | None) -> Iterator[CodeType]:
    """Yield the code of the script that runs, innermost first."""
    while frame is not None:
        if not _of_library(frame):
            yield frame.f_code
        outermost = (
            frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        )
        frame = None if outermost else frame.f_back  # what is below has started the script


@cache
def _weighs(code: CodeType) -> bool:
    """Whether this code may weigh a loss by the rows of a batch: it multiplies, or asks a size. Of
    a module's own, what lies in its loops."""
    done = [*dis.get_instructions(code)]
    if code.co_name == "<module>":
        loops = [(each.argval, each.offset) for each in done if "BACKWARD" in each.opname]
        done = [each for each in done if any(a <= each.offset <= b for a, b in loops)]
    return any(each.argrepr in ("*", "*=") or each.argval in _WEIGHS for each in done)


def _trained(x: torch.Tensor) -> bool:
    """Whether this is a parameter, which is the same on every rank."""
    return x.is_leaf and x.requires_grad
