"""Gradients that wait to be whole, and what a server leaves in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dream import CheckpointError
from dream.parameter_server.shard_state import BatchGradient, GradientParts, Snapshots


def _part(value: float, weight: float) -> BatchGradient:
    return BatchGradient(np.full(2, value, np.float32), b"", weight, value)


def test_parts_make_a_weighted_mean_once_all_are_here() -> None:
    parts = GradientParts()
    assert parts.add("batch", 1, 2, _part(4.0, 1.0)) is None
    assert parts.add("batch", 1, 2, _part(5.0, 1.0)) is None  # again: in its own place
    whole = parts.add("batch", 0, 2, _part(1.0, 3.0))
    assert whole is not None
    np.testing.assert_array_equal(whole.gradient, [2.0, 2.0])
    assert (whole.weight, whole.loss) == (4.0, 2.0)


def test_a_part_of_nothing_counts_for_nothing() -> None:
    parts = GradientParts()
    parts.add("batch", 0, 2, _part(float("nan"), 0.0))
    whole = parts.add("batch", 1, 2, _part(3.0, 2.0))
    assert whole is not None
    np.testing.assert_array_equal(whole.gradient, [3.0, 3.0])


def test_a_snapshot_counts_once_every_server_has_it(tmp_path: Path) -> None:
    first, second = (Snapshots(tmp_path, server, 2) for server in range(2))
    first.write(3, {"at": 3})
    second.write(3, {"at": 3})
    first.write(6, {"at": 6})
    assert first.newest() == (3, {"at": 3})
    second.write(6, {"at": 6})
    second.write(9, {"at": 9})
    assert second.newest() == (6, {"at": 6})
    assert len(list(tmp_path.iterdir())) == 4


def test_snapshots_stay_until_all_servers_have_newer_ones(tmp_path: Path) -> None:
    """However far ahead one server is of another."""
    first, second = (Snapshots(tmp_path, server, 2) for server in range(2))
    second.write(3, {"at": 3})
    for version in range(3, 30, 3):
        first.write(version, {"at": version})
    assert first.newest() == (3, {"at": 3})
    assert second.newest() == (3, {"at": 3})
    second.write(27, {"at": 27})
    assert first.newest() == (27, {"at": 27})
    assert [file.name for file in tmp_path.glob("server1*")] == ["server1-00000027"]
    first.write(30, {"at": 30})
    assert len(list(tmp_path.glob("server0*"))) == 2


def test_snapshots_without_a_common_version_are_an_error(tmp_path: Path) -> None:
    first, second = (Snapshots(tmp_path, server, 2) for server in range(2))
    assert first.newest() is None
    first.write(0, {"at": 0})
    assert first.newest() is None  # the parameters that start, and no update on them
    first.write(3, {"at": 3})
    for server in (first, second):
        with pytest.raises(CheckpointError, match=r"server 0: \[0, 3\], server 1: none") as error:
            server.newest()
        assert str(tmp_path) in str(error.value)
    second.write(6, {"at": 6})
    with pytest.raises(CheckpointError, match=r"server 1: \[6\]"):
        first.newest()


def test_what_came_after_a_snapshot_is_not_mixed_with_what_comes_now(tmp_path: Path) -> None:
    first, second = (Snapshots(tmp_path, server, 2) for server in range(2))
    for version in (3, 6):
        first.write(version, {"at": version})
    second.write(3, {"at": 3})
    first.forget_after(3)
    second.write(6, {"at": "another 6"})
    assert second.newest() == (3, {"at": 3})


def test_a_torn_snapshot_is_named(tmp_path: Path) -> None:
    only = Snapshots(tmp_path, 0, 1)
    only.write(3, {"at": 3})
    file = tmp_path / "server0-00000003"
    file.write_bytes(file.read_bytes()[:-1] + b"")
    with pytest.raises(CheckpointError, match="server0-00000003"):
        only.newest()
