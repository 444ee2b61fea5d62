"""A script that divides nothing runs whole on every rank, and is told so at its good end."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch_scripts import dream

SAID = "entered no `dream.strategy` block, so each of the 2 ranks ran all of it by itself"
UNDIVIDED = {
    "it trains": "import torch\nprint('trained')",
    "it leaves": "import sys, torch\nprint('trained')\nsys.exit(0)",
    "it goes elsewhere": "import os, torch\nos.chdir('/')\nprint('trained')",
    "it enters no block": "import dream, torch\ndream.strategy('mirrored')\nprint('trained')",
}
DIVIDED = {
    "no framework": "print('trained')",
    "a block": "import dream, torch\nwith dream.strategy('mirrored'): print('trained')",
    "an empty block": "import dream\nwith dream.strategy(): pass\nimport torch\nprint('trained')",
    "a communicator": "import dream, torch\nc = dream.communicator('gloo')\nprint('trained')",
    "files made once": (
        "import dream, torch\nwith dream.rank_zero_first(): pass\nprint('trained')"
    ),
    "its own ranks": "import os, torch\nrank = os.environ['RANK']\nprint('trained')",
    "its own, elsewhere": (
        "import os, torch\nrank = os.environ['RANK']\nos.chdir('/')\nprint('trained')"
    ),
    "a library": "import os, torch\nimport beside\nprint('trained')",
    "it fails": "import torch\nprint('trained')\nraise SystemExit(3)",
}


def _said(folder: Path, source: str, *asked: str, ranks: int = 2) -> str:
    script = folder / "train.py"
    script.write_text(source)
    (folder / "beside.py").write_text("# sums up by torch.distributed")
    ended = dream("run", "-n", str(ranks), *asked, str(script))
    assert "trained" in ended.stdout, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("source", UNDIVIDED.values(), ids=UNDIVIDED)
def test_what_each_rank_ran_by_itself_is_said_once(tmp_path: Path, source: str) -> None:
    assert _said(tmp_path, source).count(SAID) == 1


@pytest.mark.parametrize("source", DIVIDED.values(), ids=DIVIDED)
def test_nothing_is_said_of_ranks_that_share_or_may_share_their_work(
    tmp_path: Path, source: str
) -> None:
    assert SAID not in _said(tmp_path, source)


def test_nothing_is_said_of_one_rank(tmp_path: Path) -> None:
    assert "entered no" not in _said(tmp_path, UNDIVIDED["it trains"], ranks=1)


def test_a_strategy_from_outside_makes_no_block(tmp_path: Path) -> None:
    """Where the source names no dream, the launcher says so before the script begins."""
    asked = "--strategy", "mirrored"
    said = _said(tmp_path, UNDIVIDED["it enters no block"], *asked)
    assert SAID in said
    assert "--strategy names the strategy of a block" in said
    said = _said(tmp_path, UNDIVIDED["it trains"], *asked)
    assert "has no effect and each rank runs the whole script" in said
    assert SAID not in said


@pytest.mark.parametrize(("word", "silent"), [("", False), ("# WORLD_SIZE", True)])
def test_a_modules_own_words_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, *, silent: bool
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(f"import torch {word}\nprint('trained')")
    monkeypatch.chdir(tmp_path)
    ended = dream("run", "-n", "2", "-m", "package")
    assert "trained" in ended.stdout
    assert (SAID not in ended.stderr) == silent
