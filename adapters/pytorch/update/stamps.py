"""Which tensors some are, and how often each was written. By weak references: another may have the
id of one that is gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final
from weakref import ref

import torch

from dream.adapters.pytorch.private import version_of


@final
class Stamps:
    """Which tensors some are, and how often each was written; None stands for one that is not
    there."""

    def __init__(self, tensors: Iterable[torch.Tensor | None] = ()) -> None:
        self._held = [None if x is None else (ref(x), version_of(x)) for x in tensors]

    def are_of(self, tensors: Iterable[torch.Tensor | None], *, unwritten: bool = True) -> bool:
        """Whether these are the same ones. unwritten: and none was written since."""
        now = [*tensors]
        return len(now) == len(self._held) and all(
            x is None if held is None
            else x is not None and held[0]() is x and not (unwritten and version_of(x) != held[1])
            for x, held in zip(now, self._held, strict=True)
        )  # fmt: skip
