"""Ranks, launchers, hosts and disks that fail at random moments of saves: what was said to be saved
is there, and nothing half is taken for whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_killer import FORBIDDEN, KINDS, kills, summed


def check(folder: Path, count: int, seed: int) -> None:
    lines: list[str] = []
    kills(folder, range(count), seed, lines.append)
    found = summed(lines)
    assert not any(found[name] for name in FORBIDDEN), lines
    assert all(found[kind] for kind in KINDS)
    assert found["refused"], "no disk was full"


@pytest.mark.slow
def test_a_few_kills_lose_nothing(tmp_path: Path) -> None:
    check(tmp_path / "runs", len(KINDS), seed=0)


@pytest.mark.exhaustive
def test_many_kills_lose_nothing(tmp_path: Path) -> None:
    """Hundreds are those of checkpoint_killer.py, which goes on where it was."""
    check(tmp_path / "runs", int(os.environ.get("DREAM_TEST_KILLS", "36")), seed=1)
