"""Ranks that somebody else has started: their cores, and the name of the one that failed first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch_scripts import free_port

from dream.launch.joined.threads import fair_share, set_threads, share_before_imports


@pytest.mark.parametrize(
    ("own", "starters", "quota", "ranks", "share"),
    [
        (8, 8, 999, 4, 2),  # nobody bound it
        (1, 8, 999, 4, 1),  # mpirun --bind-to core
        (4, 64, 999, 2, 4),  # srun --cpus-per-task=4
        (32, 64, 999, 4, 16),  # bound to a socket, which two ranks share
        (64, 64, 4, 2, 2),  # a container's quota
        (2, 2, 999, 8, 1),
        (8, 0, 999, 4, 2),  # another user's starter
    ],
)
def test_a_share_of_the_cores(own: int, starters: int, quota: int, ranks: int, share: int) -> None:
    assert fair_share(own, starters, quota, ranks) == share


def test_what_the_user_set_stays() -> None:
    environ = {"MKL_NUM_THREADS": "7"}
    set_threads(environ, 2)
    assert environ["MKL_NUM_THREADS"] == "7"
    assert environ["OMP_NUM_THREADS"] == environ["TF_NUM_INTRAOP_THREADS"] == "2"


def test_ranks_of_mpirun_share_before_they_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"DREAM_RANKS_HERE": "100000"})
    share_before_imports()
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert "DREAM_RANKS_HERE" not in os.environ


SCRIPT = """
import os, sys, time
from pathlib import Path
from dream import cluster
from dream.launch.joined import last_words
place = cluster.detect()
last_words.listen(place)
folder, first = Path(sys.argv[1]), int(sys.argv[2])
(folder / f"listens{place.rank}").touch()
if place.rank == first:
    while len([*folder.glob("listens*")]) < 3:
        time.sleep(0.01)
    raise ValueError("this one")
while not (folder / "over").exists():
    time.sleep(0.01)
raise ConnectionError("connection reset by peer")
"""


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_others_say_who_failed_first(first: int, tmp_path: Path) -> None:
    """Rank 0, which serves the store, fails first, or as one of the others."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(first)],
            env={**os.environ, **place, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        _, cause = ranks[first].communicate(timeout=120)
        (tmp_path / "over").touch()
        others = [one.communicate(timeout=120)[1] for one in ranks if one is not ranks[first]]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert "failed first" not in cause
    for said in others:
        assert said.index("ConnectionError") < said.index(
            f"dream: Rank {first} failed first at {script}:13: ValueError: this one"
        )
