"""Loops of torch in a block, held to what they learn without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

import dream

Trained = Callable[..., Mapping[str, Any]]
"""Of a strategy's word, "" for none, and what else it takes: figures, by name."""
_AGAIN = pytest.mark.exhaustive
_THREE = pytest.param("mirrored", 3, marks=_AGAIN)
in_cells = pytest.mark.parametrize(("word", "ranks"), [("mirrored", 2), _THREE, ("sharded", 2)])
of_replicas = pytest.mark.parametrize(
    ("word", "ranks"), [("mirrored", 2), _THREE, pytest.param("sharded", 2, marks=_AGAIN)]
)
"""What a strategy has no part in, since batches alone are looked at."""


@cache
def plain(trained: Trained, *args: Any) -> Mapping[str, Any]:
    (found,) = dream.launch(trained, "", *args, n=1, framework="torch", timeout=300)
    return dict(found)


def hold(
    trained: Trained, word: str, *args: Any, ranks: int, within: float, but: str = "none"
) -> None:
    """Every rank has the plain loop's figures. but: the end of names that have others."""
    for each in dream.launch(trained, word, *args, n=ranks, framework="torch", timeout=300):
        for name, expected in plain(trained, *args).items():
            if not name.endswith(but):
                assert each[name] == pytest.approx(expected, rel=0, abs=within), name
