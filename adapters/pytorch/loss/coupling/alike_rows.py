"""What a loop makes beside its batch: of sizes alone, or of tensors that every rank has alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dream._log import say_once
from dream.adapters.pytorch.data.replicated_rows import ReplicatedRows
from dream.adapters.pytorch.loss.coupling.kept_rows import Alive
from dream.adapters.pytorch.loss.coupling.origins import LEAVE, PICKS, is_in_place, tensors_of
from dream.adapters.pytorch.randomness import own_places
from dream.adapters.pytorch.randomness.sites import worked_out_of_a_length

_OF_SIZES = {"arange", "zeros", "ones", "full", "eye", "linspace", "logspace", "tril_indices"}
"""What makes a tensor of sizes alone, alike everywhere."""
_ANEW = {"view", "reshape", "flatten", "unflatten", "transpose", "permute", "t", "unsqueeze",
         "squeeze", "meshgrid", "cartesian_prod", "stack", "cat", "mean", "sum"}  # fmt: skip
"""What makes tensors of other rows, whose number is no batch's where that of the first was not."""
_CASTS = {"to", "float", "double", "half", "type", "view", "reshape", "unsqueeze", "clone"}
_MOVES = {"add", "radd", "sub", "rsub", "remainder", "mod", "fmod", "roll", "flip", "floor_divide",
          "floordiv", "bitwise_xor", "xor"}  # fmt: skip
"""What makes other rows' numbers of those of rows."""
_positions = Alive()


def note_alike(
    alike: ReplicatedRows, name: str, given: list[torch.Tensor], made: Any, args: Any, count: int
) -> None:
    """A function has made something of nothing that is a batch's, as far as can be seen. given:
    tensors, among its args. count: of the share's rows: a size may be a batch's."""
    if any(x in _positions for x in given):
        moved = name.strip("_") in _MOVES or any(map(own_places.made_by, given))
        _note_positions(name, tensors_of(made), moved=moved)
    if name in _OF_SIZES and not given:
        if name == "arange" and any(_as_long(x, count) for x in tensors_of(made)):
            for x in tensors_of(made) if worked_out_of_a_length(of_rows=True) else ():
                _positions.add(x)
        points = "space" in name
        as_long = any(_as_long(x, count) for x in tensors_of(made))
        if points and as_long and worked_out_of_a_length(of_rows=True):
            _tell_own_range(name)
        alike.made_before(x for x in tensors_of(made) if points or not _as_long(x, count))
    elif alike:
        of = given[:1] if "norm" in name else given
        if is_in_place(name):
            alike.written(of, count)
        picks = name in PICKS and not _by_values(args)
        if picks and len(of) == 1 and of[0].dim():
            alike.taken(of[0], tensors_of(made), count)
        if name in LEAVE:
            for x in given[:1]:
                alike.lent(x)
        anew = name in _ANEW
        alike.follow(
            of, tensors_of(made), count, lambda x: anew or (picks and not _as_long(x, count))
        )


def _note_positions(name: str, made: list[torch.Tensor], *, moved: bool) -> None:
    """Something was made of numbers from 0 to as many as this rank has rows: as an index they are
    right, unless they were moved, and as values those of other rows."""
    for x in made:
        if not x.is_floating_point() or name in _CASTS:
            _positions.add(x)
            if moved:
                own_places.note(x, "arange")
        elif name not in PICKS:
            _tell_own_range("arange")


def _tell_own_range(name: str) -> None:
    say_once(
        f"torch.{name} in the loop makes as many points as this rank's share of the batch has "
        "rows, over the whole range: a row has another one than on one device. Make them for the "
        "global batch, and take this rank's by strategy.share"
    )


def _as_long(x: torch.Tensor, count: int) -> bool:
    """Whether it has a row for each of a share's, as what is made by its length has."""
    dims = 2 if x.dim() > 2 or not x.is_floating_point() else 1
    return count in x.shape[:dims]


def _by_values(args: Any) -> bool:
    """Whether rows are picked by numbers that no tensor has, and that may be a batch's."""
    chosen = args[1] if len(args) > 1 else None
    parts = chosen if isinstance(chosen, tuple) else (chosen,)
    return any(isinstance(each, (list, np.ndarray)) for each in parts)
