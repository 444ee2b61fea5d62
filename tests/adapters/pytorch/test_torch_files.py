"""Files of a job of two ranks: whose they are, when they are read, and that they are whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_files

import dream

READER = Path(__file__).with_name("read_pickles.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return dream.launch(torch_files.run, folder, n=2, framework="torch", timeout=500)


def test_a_rank_writes_a_path_of_its_own(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        assert rank["own_paths"] == {"rank": number, "version": 2}


def test_rank_0s_file_stays_whoever_comes_first(ranks: list[dict[str, Any]], folder: Path) -> None:
    del ranks
    for late in (0, 1):
        assert torch.load(folder / "first_come" / f"late{late}.pt") == {"rank": 0}


def test_what_is_loaded_is_what_was_saved_last(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["loads"] == [0, 1, 2]


def test_nobody_waits_for_a_save_behind_a_guard(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["guarded"] for rank in ranks)


def test_links_modes_and_pipes_stay(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["links"] == (True, True)
    for rank in ranks:
        assert rank["modes"] == 0o600
        assert rank["devices"] == (True, True)


def test_a_full_disk_is_named_and_the_old_file_is_whole(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        kind, said, path, kept = rank["no_room"]
        assert (kind, kept) == ("OSError", "before")
        assert path in said
        assert "MB free at" in said


def test_nothing_else_is_left(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        left = {name: found for name, found in rank.items() if name.startswith("left by ")}
        assert len(left) == 10
        assert not any(left.values()), left


def test_models_load_where_there_is_no_dream(ranks: list[dict[str, Any]], folder: Path) -> None:
    files = [str(folder / "pickles" / name) for name in ranks[0]["pickles"]]
    environ = os.environ | {"PYTHONPATH": str(READER.parent)}
    done = subprocess.run(
        [sys.executable, str(READER), *files],
        env=environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout == f"read {len(files)}\n", done.stderr


def test_ranks_that_write_one_file_by_other_means_are_told_once(
    ranks: list[dict[str, Any]], folder: Path
) -> None:
    """A table that both append to is one of them."""
    first = ranks[0]["said"]
    assert sorted(text for text in first if "write one file" in text) == [
        f"ranks 0, 1 write one file, and what the last of them writes is what stays (what is "
        f"appended is there once for each): {folder / 'others' / name}. Write it on one rank "
        "(`if strategy.topology.rank == 0:`), or under a name for each"
        for name in ("log.txt", "one.npy")
    ]
