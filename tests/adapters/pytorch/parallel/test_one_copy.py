"""One copy of the weights a host: the bits of replicas of their own, and nothing in silence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import one_copy_scripts
import pytest

import dream

pytestmark = pytest.mark.slow

DIES = """
import json, os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import dream

out, dies = sys.argv[1], len(sys.argv) > 2
torch.manual_seed(5)
data = TensorDataset(torch.randn(61, 300), torch.randint(0, 3, (61,)))
with dream.strategy("mirrored", one_copy=True) as strategy:
    model = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = DataLoader(data, batch_size=16, shuffle=True)
    step = strategy.train_step(model, nn.functional.cross_entropy, optimizer)
    at = strategy.load(model=model, optimizer=optimizer, data=batches)
    steps = at.step if at else 0

    def die(*_):
        if dies and at is None and steps == 9 and strategy.topology.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer.register_step_pre_hook(die)  # the other writes its part, this one does not
    for _ in range(at.epoch if at else 0, 4):
        for batch in batches:
            step(*batch)
            steps += 1
    if strategy.topology.rank == 0:
        state = {name: value.tolist() for name, value in model.state_dict().items()}
        with open(out, "w") as file:
            json.dump({"from": at and at.step, "steps": steps, "state": state}, file)
"""


@cache
def results() -> list[dict[str, Any]]:
    return dream.launch(one_copy_scripts.everything, n=2, framework="torch", timeout=300)


CASES = [name for name in one_copy_scripts.MAKES if name not in one_copy_scripts.ALIKE]


@pytest.mark.exhaustive
def test_optimizers_of_like_states_end_at_the_same_bits() -> None:
    for rank in dream.launch(one_copy_scripts.alike, n=2, framework="torch", timeout=300):
        assert rank == dict.fromkeys(one_copy_scripts.ALIKE, "")


@pytest.mark.parametrize("case", [*CASES, "accumulate", "shares", "checkpoint"])
def test_uneven_steps_end_at_the_same_bits(case: str) -> None:
    assert [rank[case] for rank in results()] == ["", ""]


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [3, 4])
def test_of_more_ranks_too(ranks: int) -> None:
    found = dream.launch(one_copy_scripts.some, n=ranks, framework="torch", timeout=300)
    assert found == [""] * ranks


def test_parameters_and_state_lie_once() -> None:
    assert [rank["memory"] for rank in results()] == [[True] * 3] * 2


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("loop_untouched", "Make step = strategy.train_step(model, loss, optimizer)"),
        ("step_by_hand", "Received: AdamW.step() in the loop"),
        ("written_outside", "A parameter was written outside the update"),
        ("part_of_a_model", "Received: 3 of its parameters that SGD does not step"),
        ("another_optimizer", "Received: LBFGS. Use one of SGD, Adam,"),
        ("no_room", "Shared memory for the ranks could not be allocated. Received: "),
        ("over gloo", "Received: reduction='gloo'. Remove one_copy."),
        (
            "clipped",
            "One copy of the weights does not support this option. Received: clip_norm=1.0",
        ),
        ("buckets", "Received: bucket_mb=5"),
    ],
)
def test_what_would_be_another_model_is_refused_on_every_rank(act: str, said: str) -> None:
    for rank in results():
        assert said in rank[act]


def test_one_rank_trains_as_ever_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "dream"), dream.strategy("mirrored", one_copy=True) as strategy:
        _, _, step = one_copy_scripts.start(strategy)
        one_copy_scripts.run(step, 1)
    assert "there is one rank" in caplog.text


@pytest.mark.slow
def test_a_death_in_mid_update_is_told_and_the_last_checkpoint_goes_on(tmp_path: Path) -> None:
    """The only copy is torn then: half of it is a step ahead."""
    script = tmp_path / "train.py"
    script.write_text(DIES)
    kept = ["--checkpoint", str(tmp_path / "kept"), "--every", "0.01", "--max-restarts", "1"]

    def ends(out: str, *words: str, options: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
        command = [sys.executable, "-m", "dream", "run", "-n", "2", *options, str(script)]
        ran = subprocess.run(
            [*command, str(tmp_path / out), *words], capture_output=True, text=True, timeout=200
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads((tmp_path / out).read_text()), ran.stderr

    undisturbed, _ = ends("undisturbed")
    again, said = ends("again", "dies", options=kept)
    assert "Starting again, 1 of 1" in said
    assert 1 <= again.pop("from") <= 9
    assert undisturbed.pop("from") is None
    assert again == undisturbed
