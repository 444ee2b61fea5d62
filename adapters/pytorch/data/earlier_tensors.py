"""The tensors that a script has made before its loop reads the first batch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import nn

from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.sites import is_library
from dream.adapters.pytorch.randomness.words import variables_of

_FRAMES, _MOST = 6, 100


def tensors_named(*, items: bool = True) -> Iterator[torch.Tensor]:
    """Yield what the script's own frames can name now, once for each name: variables, items of
    lists and dicts of them (if items), attributes of its objects. Before the first batch nothing of
    one is in them."""
    scopes = ((variables_of(frame), frame.f_globals) for frame in frames_of_script())
    for names in {id(scope): scope for both in scopes for scope in both}.values():
        for value in [*names.values()]:
            with suppress(Exception):  # objects that stand for others may raise anything
                if items or not isinstance(value, (list, tuple, dict)):
                    yield from _tensors(value)


def frames_of_script() -> Iterator[FrameType]:
    """The innermost frames of the block's own thread that are the script's: batches may be read
    ahead by another."""
    frame = sys._current_frames().get(current.owner)
    left = _FRAMES
    while frame is not None and left:
        if not is_library(frame.f_globals.get("__name__")):
            yield frame
            left -= 1
        frame = frame.f_back


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    held: Iterable[Any] = ()
    if isinstance(value, (list, tuple)):
        held = value[:_MOST]
    elif isinstance(value, dict):
        held = [*value.values()][:_MOST]
    elif isinstance(value, nn.Module) or not (
        isinstance(value, (ModuleType, type)) or is_library(type(value).__module__)
    ):
        held = [*getattr(value, "__dict__", {}).values()]
    yield from (each for each in held if isinstance(each, torch.Tensor))
