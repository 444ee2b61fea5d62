"""Several loaders that are read in whatever way go on from any step that they are left at, and what
a checkpoint does not hold is named."""

from __future__ import annotations

from pathlib import Path

import checkpoint_forms
import pytest
from launch_scripts import ON_TORCH

import dream

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["restarted", "in turn", "copied"])
def test_several_loaders_go_on_from_every_step(name: str, tmp_path: Path) -> None:
    """One that began anew within a step had handed out a batch that was lost; one that had ended
    before the other began was read again. Copies of batches, which no loader sees, are told as
    soon as they are, though a training that went on has fewer to copy."""
    words = ("single", "single")
    found = dream.launch(checkpoint_forms.loops, str(tmp_path), name, words, n=1, **ON_TORCH)[0]
    for step, (gap, told) in found.items():
        assert told == (name == "copied"), (step, gap)
        assert told or gap == 0, (step, gap)


def test_what_a_checkpoint_does_not_hold_is_named(tmp_path: Path) -> None:
    lines = dream.launch(checkpoint_forms.beside, str(tmp_path / "run"), n=1, **ON_TORCH)[0]
    told = [line for line in lines if "trains on beside" in line]
    assert len(told) == 2, lines
    for line in told:
        lost = "AveragedModel, GradScaler, StepLR, a generator of Noisy, the generator own trains"
        assert line.startswith(lost), line
    assert sum("training goes on in epoch 0 with 2 batches of it behind" in x for x in lines) == 1
