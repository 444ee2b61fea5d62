"""Buckets in memory of all ranks: whatever a script does to gradients, the bits are those of
buckets that are copied, and the numbers those of one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import bucket_scripts
import pytest

import dream
from dream.shared_memory import status

pytestmark = pytest.mark.skipif(status().path is None, reason=status().why)
FEW = ("summed", "no views", "find_unused", "edited", "frozen")
MORE = tuple(name for name in bucket_scripts.LOOPS if name not in FEW)


@cache
def results(names: tuple[str, ...], ranks: int) -> list[dict[str, Any]]:
    act = bucket_scripts.compared
    return dream.launch(act, names, n=ranks, framework="torch", timeout=200)


def check(found: list[dict[str, Any]], name: str) -> None:
    for rank in found:
        assert rank[name]["copied"] == 0.0
        assert rank[name]["alone"] < 1e-6
        assert rank[name]["bits"] == found[0][name]["bits"]
        assert rank[name]["lies"] == [name != "no views", False]


@pytest.mark.parametrize("name", FEW)
def test_a_loop_that_touches_gradients(name: str) -> None:
    check(results(FEW, 2), name)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("names", "ranks"), [(MORE, 2), (FEW, 3), (MORE, 3), (FEW, 4)])
def test_further_loops_and_ranks(names: tuple[str, ...], ranks: int) -> None:
    for name in names:
        check(results(names, ranks), name)
