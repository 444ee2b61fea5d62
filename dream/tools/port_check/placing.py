"""Inputs and outputs between the batch's layout and a model's, and what passes a layer in the
canonical one. On NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dream.tools.port_check.arrays import OPS
from dream.tools.port_check.description import OTHER, Layer
from dream.tools.port_check.steps import apply, dense_order

Array = NDArray[Any]


def turns(rank: int, layers: Sequence[Layer], channels_first: bool) -> bool:
    """Whether an array of that rank, channels last in the file, is given to the model with its
    channels in axis 1.

    From four dims on, where the framework (`channels_first`) or a layer of the model has maps so.
    With three, where the first layer that is no norm is a convolution over one dim: tokens and
    single-channel images stay.
    """
    if rank >= 4:
        return channels_first or any(layer.channels_first for layer in layers)
    first = next((layer for layer in layers if layer.kind not in _ANYWHERE), None)
    return rank == 3 and first is not None and first.channels_first and first.kind.endswith("1d")


_ANYWHERE = (OTHER, "embedding", "batch_norm", "group_norm", "prelu")
"""Kinds that tell nothing of the layout."""


def turned(x: Array) -> Array:
    """Channels from the last axis to axis 1."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def turned_back(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def given_to(layer: Layer, x: Array) -> Array:
    """What goes into a layer, in the canonical layout."""
    return _features(_axes(layer, x), layer.flattened)


def given_by(layer: Layer, x: Array) -> Array:
    """What comes out of a layer, in the canonical layout."""
    return _features(_axes(layer, x), layer.unflattened)


def _axes(layer: Layer, x: Array) -> Array:
    if layer.channels_first and x.ndim >= 3:
        return turned_back(x)
    return np.swapaxes(x, 0, 1) if layer.time_first and x.ndim == 3 else x


def _features(x: Array, flattened: tuple[int, ...]) -> Array:
    if not flattened or x.shape[-1] != np.prod(flattened):
        return x
    return np.asarray(apply(dense_order(x.shape, x.ndim - 1, flattened), x, OPS))
