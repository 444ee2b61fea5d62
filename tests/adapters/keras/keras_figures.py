"""Holds the figures that cases end with, on every rank of a cell, to those of one device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras_launching
import numpy as np
import pytest
from keras_launching import Cell

import dream

_EXHAUSTIVE = pytest.mark.exhaustive
CELLS = [Cell("torch", 2), Cell("tensorflow", 2)]
DEVICES = Cell("tensorflow", 1, 2)
FURTHER = [Cell("torch", 3), Cell("tensorflow", 3), DEVICES]
DIVERGES = {"callbacks_that_watch_the_logs": 2e-5}
"""Its loss comes to 48, on one device too: rounding grows with it."""

Ranks = list[dict[str, Any]]


def over(
    names: Sequence[str],
    *,
    held: Collection[str] = (),
    devices: Collection[str] = (),
    cells: Sequence[Cell] = CELLS,
    further: Sequence[Cell] = FURTHER,
) -> Callable[..., Any]:
    """Decorator: a test of `ranks` and a name is run for each cell and each case. held: cases that
    TensorFlow, where each takes seconds, leaves to `make exhaustive`, since others hold them there;
    devices: those that two devices in one process are asked always; further: cells that are left to
    `make exhaustive`."""

    def marks(cell: Cell, name: str) -> Any:
        if cell == DEVICES:
            return () if name in devices else _EXHAUSTIVE
        spared = cell.backend == "tensorflow" and name in held
        return _EXHAUSTIVE if spared or cell in further else ()

    pairs = [
        pytest.param(cell, name, id=f"{cell}-{name}", marks=marks(cell, name))
        for cell in (*cells, *further)
        for name in names
    ]
    return pytest.mark.parametrize(("ranks", "name"), pairs, indirect=["ranks"])


def asked(request: pytest.FixtureRequest) -> list[str]:
    """The names that a module's collected tests ask of what a fixture is made for."""
    calls = (
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    )
    mine = [call for call in calls if call.get(request.fixturename) == request.param]
    return list(dict.fromkeys(call["name"] for call in mine if "name" in call))


_ENDED: dict[Any, Any] = {}


def once(key: Any, act: Callable[[], Any]) -> Any:
    """What `act` gives, or dream's error that it ends in: the first time, and ever after. A fixture
    that has its parameter from `over` is made for each test."""
    if key not in _ENDED:
        try:
            _ENDED[key] = act()
        except dream.DreamError as error:
            _ENDED[key] = error
    if isinstance(_ENDED[key], dream.DreamError):
        raise _ENDED[key]
    return _ENDED[key]


def ranks_of(module: str) -> Callable[..., Any]:
    """A fixture: what a module's cases ended with on each rank, once for each cell."""

    @pytest.fixture(name="ranks")
    def ranks(request: pytest.FixtureRequest) -> Ranks:
        cell: Cell = request.param
        given = ("run", "mirrored", cell.options, asked(request))
        found: Ranks = once((module, cell), lambda: keras_launching.call(cell, module, *given))
        return found

    return ranks  # type: ignore[no-any-return]  # pytest's own kind


def ended_of(module: str) -> Callable[..., Any]:
    """A fixture: what a module's cases ended with on each rank, beside plain Keras on the first,
    once for each cell."""

    @pytest.fixture(name="ranks")
    def ranks(request: pytest.FixtureRequest) -> Ranks:
        cell, names = request.param, asked(request)
        call = keras_launching.call
        found: Ranks = once((module, cell), lambda: call(cell, module, "ended", names))
        return found

    return ranks  # type: ignore[no-any-return]  # pytest's own kind


def assert_as_plain(ranks: Ranks, name: str, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    for rank in ranks:
        for figures in (ranks[0][name][0], rank[name][1]):
            assert not isinstance(figures, str), figures
        for found, expected in zip(rank[name][1], ranks[0][name][0], strict=True):
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def assert_as_on_one_device(ranks: Ranks, name: str) -> None:
    plain, _ = ranks[0][name]
    for rank in ranks:
        _, figures = rank[name]
        assert not isinstance(figures, str), figures
        for key, expected in plain.items():
            assert_close(figures[key], expected, f"{name} {key}")


def assert_every_case_is_run(module: str, names: Sequence[str]) -> None:
    assert keras_launching.source(module).count("@case\n") == len(names)


def assert_close(found: Any, expected: Any, what: str) -> None:
    """Within 1e-6, or 2e-6 of logs that are sums of many."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), what
        for key in expected:
            assert_close(found[key], expected[key], f"{what} {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), what
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, what)
    else:
        rtol = DIVERGES.get(what.partition(" ")[0], 2e-6)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6, err_msg=what)
