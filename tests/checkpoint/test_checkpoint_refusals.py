"""What a checkpoint does not fit is refused by a clear error, before anything is changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from launch_scripts import ON_TORCH

import dream

SAID = {
    "missing": r"different weights. Received: '1.weight' here alone",
    "surplus": r"different weights. Received: '0.bias' in it alone",
    "shape": r"'0.weight' of shape \(3, 4\) in it, \(5, 4\) here",
    "optimizer": r"a different optimizer. Received: AdamW in it, Adagrad here",
    "newer": r"another format. Received: .*, format 99; this dream reads 1",
    "uncommitted": r"No checkpoint here is complete. Received: .*, without COMMITTED",
    "flipped": r"optimizer.safetensors: its digest is another",
    "file": r"Checkpoints need a folder. Received: .*, a file",
    "bare": r"has no optimizer. Received: optimizer=.* strict=False",
    "length": r"state belongs to different data.*Received: .*20.* in the state, .*25.* here",
    "batch": r"state belongs to different data.*Received: .*5.* in the state, .*4.* here",
}


def call(name: str, folder: Path) -> Any:
    return dream.launch(by_name, name, str(folder), n=1, **ON_TORCH)[0]


def by_name(name: str, folder: str) -> Any:
    import checkpoint_bad

    return getattr(checkpoint_bad, name)(folder)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    told: dict[str, str] = call("refusals", tmp_path_factory.mktemp("bad"))
    return told


@pytest.mark.parametrize("case", SAID)
def test_it_is_refused_and_nothing_is_changed(case: str, found: dict[str, str]) -> None:
    assert not found[case].startswith("changed"), found[case]
    assert re.search(SAID[case], found[case]), found[case]


def test_what_is_there_is_taken_where_that_is_asked_for(tmp_path: Path) -> None:
    fresh, step, none = call("taken_in_part", tmp_path)
    assert fresh
    assert step == 2
    assert none is None
