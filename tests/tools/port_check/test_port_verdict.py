"""How far apart is too far, and what arrays are recognized by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dream.model_description.layers import Layer
from dream.tools.port_check.probe import called_with
from dream.tools.port_check.reasons import ACTIVATIONS, _of_values, identify
from dream.tools.port_check.verdict import LayerRow, gap, tolerance

DRAW = np.random.default_rng(5)


def test_a_gap_is_relative_to_the_largest_number() -> None:
    found = gap(np.array([10.0, 1.0]), np.array([10.0, 1.5]), 0.04)
    assert (found.largest, found.relative, found.bad) == (0.5, 0.05, True)
    assert not gap(np.array([10.0, 1.0]), np.array([10.0, 1.5]), 0.06).bad
    assert not gap(np.array([1e-9]), np.array([2e-9]), 1e-5, scale=1.0).bad
    assert not gap(np.zeros(3), np.zeros(3), 0.0).bad
    assert gap(np.zeros(3), np.full(3, 1e-9), 0.1).bad
    assert not gap(np.zeros((0, 3)), np.zeros((0, 3)), 0.0).bad


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_no_number_is_far_from_all_that_is(odd: float) -> None:
    assert gap(np.array([1.0, 2.0]), np.array([1.0, odd]), 1.0).bad
    assert not gap(np.array([1.0, odd]), np.array([1.0, odd]), 0.0).bad
    shapes = gap(np.zeros(3), np.zeros(4), 1.0)
    assert shapes.bad
    assert shapes.reshaped


def test_a_tolerance_grows_with_the_root_of_the_depth() -> None:
    assert tolerance("float32", 1, None) == pytest.approx(32 * 2.0**-23)
    assert tolerance("float32", 9, None) == pytest.approx(3 * tolerance("float32", 1, None))
    assert tolerance("bfloat16", 1, None) == pytest.approx(32 * 2.0**-7)
    assert tolerance("float32", 9, 1e-3) == 1e-3


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_told_from_all_others(name: str) -> None:
    x = DRAW.normal(size=(6, 40)) * 4
    assert identify(x, ACTIVATIONS[name](x), 1e-4) == (name, "")
    assert identify(x, ACTIVATIONS[name](x) + 1e-2 * DRAW.normal(size=x.shape), 1e-4) is None


def test_a_map_is_told_by_the_order_of_its_flattening() -> None:
    maps = DRAW.normal(size=(2, 3, 4, 5))
    assert identify(maps, maps.reshape(2, -1), 1e-4) == ("none", "channels last")
    first = np.moveaxis(maps, -1, 1).reshape(2, -1)
    assert identify(maps, np.maximum(first, 0), 1e-4) == ("relu", "channels first")


KERNEL = DRAW.normal(size=(6, 12))
SQUARE = DRAW.normal(size=(6, 6))
MAPS = DRAW.normal(size=(3, 3, 2, 4))


@pytest.mark.parametrize(
    ("kind", "old", "new", "words"),
    [
        ("dense", SQUARE, SQUARE.T, "transposed"),
        ("dense", KERNEL, KERNEL[::-1], "rows are the same in another order"),
        ("dense", KERNEL, KERNEL[:, ::-1], "in another order"),
        ("lstm", KERNEL, np.roll(KERNEL, 3, 1), "o, i, f, g where i, f, g, o belong"),
        ("gru", KERNEL, np.roll(KERNEL, 4, 1), "n, z, r where z, r, n belong"),
        ("conv2d", MAPS, MAPS[::-1, ::-1], "flipped in space"),
    ],
)
def test_numbers_in_other_places_are_recognized(
    kind: str, old: np.ndarray, new: np.ndarray, words: str
) -> None:
    layer = Layer("x", kind, ())
    (reason,) = _of_values(LayerRow(layer, layer), "kernel", old, new)
    assert words in reason
    assert not list(_of_values(LayerRow(layer, layer), "kernel", old, new + 0.1))


def test_inputs_come_by_their_numbers() -> None:
    assert called_with({f"x{n}": n for n in (10, 2, 0)}) == ([0, 2, 10], {})
