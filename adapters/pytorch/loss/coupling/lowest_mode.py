"""Function modes of dream's own, which lie below those of the script: a script leaves its own by
taking away whichever lies on top."""

from __future__ import annotations

from abc import ABC
from itertools import takewhile

from torch.overrides import TorchFunctionMode

from dream.adapters.pytorch import private


class LowestMode(TorchFunctionMode, ABC):
    """Sees what is called last, whenever it was put there. What is put later lies above those of
    dream's that were there before."""

    entered = False

    def put(self) -> None:
        """See what is called from now on, in this thread."""
        if not self.entered:
            self.entered = True
            lies = _taken_away()
            own = [*takewhile(_is_low, lies)]
            _put_back([*own, self, *lies[len(own) :]])

    def take(self) -> None:
        """See no more. While it looks at a call it is not there to be taken: that is so later."""
        if not self.entered:
            return
        lies = _taken_away()
        left = [mode for mode in lies if mode is not self]
        self.entered = len(left) == len(lies)
        _put_back(left)


def _is_low(mode: TorchFunctionMode) -> bool:
    return isinstance(mode, LowestMode) or mode is private.default_device_mode()


def _taken_away() -> list[TorchFunctionMode]:
    """Take all modes away, and return them, the lowest first."""
    lies: list[TorchFunctionMode] = []
    while (mode := private.innermost_mode()) is not None:
        TorchFunctionMode.__exit__(mode, None, None, None)
        lies.insert(0, mode)
    return lies


def _put_back(lies: list[TorchFunctionMode]) -> None:
    for mode in lies:
        TorchFunctionMode.__enter__(mode)
