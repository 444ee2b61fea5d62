"""Holding other libraries' listeners: what is said where it cannot be done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dream._errors import NotInstalled
from dream._topology import Cluster
from dream.shared_memory import library, listening

PLACE = Cluster(world_size=2)


@pytest.fixture
def _no_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    listening._core.cache_clear()
    yield
    listening._core.cache_clear()


def test_a_library_that_is_not_there() -> None:
    assert "libnowhere is not loaded" in listening.hold(PLACE, "It", ["libnowhere"])


@pytest.mark.usefixtures("_no_core")
def test_without_the_core_it_says_why() -> None:
    assert "core was not built" in listening.hold(PLACE, "It", ["libc"])


@pytest.mark.usefixtures("_no_core")
def test_a_range_that_cannot_be_held_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAM_PORT_RANGE", "40000-40010")
    with pytest.raises(
        NotInstalled, match=r"The ring cannot be restricted.*40000-40010.*was not built"
    ):
        listening.hold(PLACE, "The ring", ["libc"])
