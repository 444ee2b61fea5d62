"""Ranks, launchers, hosts and disks that fail at random moments of saves: what was said to be saved
is there, and nothing half is taken for whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from checkpoint_killer import FORBIDDEN, KINDS, kills, summed

FEW = ("writer", "host", "full disk")


def check(folder: Path, numbers: Sequence[int], seed: int) -> None:
    lines: list[str] = []
    kills(folder, numbers, seed, lines.append)
    found = summed(lines)
    assert not any(found[name] for name in FORBIDDEN), lines
    assert all(found[KINDS[number % len(KINDS)]] for number in numbers)
    assert found["refused"], "no disk was full"


@pytest.mark.slow
def test_a_few_kills_lose_nothing(tmp_path: Path) -> None:
    check(tmp_path / "runs", [KINDS.index(kind) for kind in FEW], seed=0)


@pytest.mark.exhaustive
def test_many_kills_lose_nothing(tmp_path: Path) -> None:
    """Hundreds are those of checkpoint_killer.py, which goes on where it was."""
    check(tmp_path / "runs", range(int(os.environ.get("DREAM_TEST_KILLS", "36"))), seed=1)
