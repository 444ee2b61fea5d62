"""Numbers that the loop itself reads and adds up, of which a rank has a part."""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache, wraps
from types import CodeType, FrameType
from typing import Any, NamedTuple, final

import numpy as np
import torch

from dream._log import logger
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.private import be_whole, saved
from dream.adapters.pytorch.update.same_numbers import Runs, SameNumbers, mark
from dream.collectives import Communicator

_OWN_SUMS = (
    "what the loop itself adds up over an epoch is of this rank's rows alone: running += "
    "loss.item() * len(x) comes to a part of the sum, so divide it by the rows that were counted, "
    "not by len(data); other sums, as of right answers, are made global by "
    'strategy.communicator.all_reduce(torch.tensor(own), op="sum"). So is a loss that is logged '
    "where another made of it went backward, as (loss / 4).backward(), or a part of one"
)
numbers_of: Callable[[torch.Tensor], list[float]] = torch.Tensor.tolist
"""As it was before any block watched it: at every step, dream's reads are not the loop's."""
_LIBRARIES = ("torch.", "dream.", "keras.", "wandb.", "mlflow.")
_WEIGHS = {"len", "numel", "shape", "size", "update"}
"""Names by which code comes to weigh a number by a batch's rows: of sizes, and of meters."""

_MOST = 10_000
"""Losses that are kept: a sum of more is not known again."""
_CLOSE = 1e-5


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

    def __init__(self, shares: Shares, runs: Runs = tuple) -> None:
        """runs: parameters that every rank has alike, with their gradients."""
        self._shares = shares
        self._same = SameNumbers(runs)
        self._sums = LossSums()
        self._said = False

    def subscribe(self, hooks: Hooks) -> None:
        hooks.wrap("read", self._noting)
        hooks.wrap("clip_norm", self._same.wrap_clip)

    def _noting(self, read: Callable[..., Any]) -> Callable[..., Any]:
        keeps = read.__name__ == "detach"  # of what is no number that is a matter of the model's

        @wraps(read)
        def wrapped(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not (self._said or (keeps and x.dim()) or _trained(x)) and self._reads_shares():
                caller = sys._getframe(1)
                whole = hasattr(x, "_dream_global")
                own = not _of_library(caller) and (not whole or self._may_weigh(caller))
                if own and not self._gives(x):
                    self._said = True
                    logger.info(_OWN_SUMS)
                made = read(x, *args, **kwargs)
                if keeps and own:
                    mark(made)
                elif keeps and whole:
                    made._dream_global = True  # of one memory with the loss
                    self._sums.add(made)
                return made
            return read(x, *args, **kwargs)

        return wrapped

    def _gives(self, x: torch.Tensor) -> bool:
        """Whether every rank reads the same. This reads, too, what is not the loop's to read."""
        self._said = True
        try:
            return self._sums.give(x) or self._same.gives(x)
        finally:
            self._said = False

    def _may_weigh(self, caller: FrameType) -> bool:
        """A loss that is left when the pass is over is the last one: nobody adds it up."""
        if not self._shares.reads and _around(caller.f_code, caller.f_lasti).after:
            return False
        return _may_weigh(caller)

    def _reads_shares(self) -> bool:
        if torch.compiler.is_compiling():
            return False
        return torch.is_grad_enabled() and self._shares.parted


def _of_library(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith(_LIBRARIES)


def _may_weigh(frame: FrameType | None) -> bool:
    """Whether the script may weigh what this frame reads by a batch's rows, in the loop over
    batches or in what that calls; not in a loop over epochs around it."""
    while frame is not None:
        if not _of_library(frame):
            around = _around(frame.f_code, frame.f_lasti)
            if around.weighs or around.trains:
                return around.weighs
        outermost = (
            frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        )
        frame = None if outermost else frame.f_back  # what is below has started the script
    return False


@final
class _Around(NamedTuple):
    """What code does around a place. weighs: by rows: it multiplies, or asks a size, in loops
    around that, in a function without one anywhere. trains: one of these goes backward: of several,
    the outermost is then one over epochs. after: the innermost of them goes backward in a loop of
    its own, which is over."""

    weighs: bool
    trains: bool
    after: bool


@cache
def _around(code: CodeType, at: int) -> _Around:
    done = [*dis.get_instructions(code)]
    ends: dict[int, int] = {}
    for each in done:
        if "BACKWARD" in each.opname:
            ends[each.argval] = max(each.offset, ends.get(each.argval, 0))
    loops = sorted(ends.items(), reverse=True)
    inside = [_between(done, *loop) for loop in loops if loop[0] <= at <= loop[1]]
    if not inside:
        weighs = code.co_name != "<module>" and _weighs(done)
        return _Around(weighs, trains=False, after=False)
    trains = [_trains(loop) for loop in inside]
    first, last = inside[0][0].offset, inside[0][-1].offset
    over = (loop for loop in loops if first < loop[0] and loop[1] < min(last, at))
    after = any(_trains(_between(done, *loop)) for loop in over)
    weighs = _weighs(inside[-2 if any(trains[:-1]) else -1])
    return _Around(weighs, any(trains), after)


def _between(done: Iterable[dis.Instruction], first: int, last: int) -> list[dis.Instruction]:
    return [each for each in done if first <= each.offset <= last]


def _trains(loop: Iterable[dis.Instruction]) -> bool:
    return any(each.argval == "backward" for each in loop)


def _weighs(done: Iterable[dis.Instruction]) -> bool:
    return any(each.argrepr in ("*", "*=") or each.argval in _WEIGHS for each in done)


def _trained(x: torch.Tensor) -> bool:
    """Whether this is a parameter, which is the same on every rank."""
    return x.is_leaf and x.requires_grad


def is_used_again(root: torch.Tensor, keep: dict[str, Any]) -> bool:
    """Whether a further backward would use the root's own value."""
    again = keep.get("retain_graph") or keep.get("create_graph")
    return bool(again) and saved(root.grad_fn, "result") is not None


@final
class LossSums:
    """Knows a number again that is the sum or the mean of the last global losses, however many.
    That is tried, as a number does not tell what it was made of."""

    def __init__(self) -> None:
        self._new: list[torch.Tensor] = []
        self._values: deque[float] = deque(maxlen=_MOST)

    def add(self, loss: torch.Tensor) -> None:
        """Keep a loss, without reading it: on a GPU that would wait."""
        self._new.append(loss)
        del self._new[:-_MOST]

    def give(self, x: torch.Tensor) -> bool:
        """Tell whether this is such a number; one that is about to be read in any case."""
        if x.dim() or not x.is_floating_point() or not (self._new or self._values):
            return False
        if self._new:
            self._values.extend(torch.stack([each.to(x) for each in self._new]).tolist())
            self._new.clear()
        sums = np.cumsum([*reversed(self._values)])
        means = sums / np.arange(1, len(sums) + 1)
        value = float(x.detach())
        return bool(np.isclose([sums, means], value, _CLOSE, 0.0).any())
