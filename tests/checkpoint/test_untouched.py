"""Scripts that neither save nor load are killed, and end as if they had not been, or are refused
before anything is overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

SCRIPTS = Path(__file__).with_name("untouched")
REFUSED = "cannot be gone on with as it stands"
SAID = "--checkpoint keeps nothing of this training"
pytestmark = pytest.mark.slow


@final
@dataclass(frozen=True)
class Job:
    """updates, evaluations: at which it is killed, counted by each process for itself."""

    script: str
    word: str = "single"
    ranks: int = 1
    arguments: tuple[str, ...] = ()
    updates: str = ""
    evaluations: str = ""
    more: Mapping[str, str] = field(default_factory=dict)

    def run(self, folder: Path, *, saved: bool = True) -> subprocess.CompletedProcess[str]:
        out = folder / "out.json"
        told = {"FATE_OUT": str(out), "FATE_UPDATES": self.updates, "FATE_SLEEP": "0.03"}
        told |= {"FATE_EVALUATIONS": self.evaluations, **self.more}
        options = ["-n", str(self.ranks)]
        if saved:
            options += ["--checkpoint", str(folder / "kept"), "--every", "0.01"]
            options += ["--max-restarts", "4"]
        else:
            told["FATE_SLEEP"] = "0"
        command = [sys.executable, "-m", "dream", "run", *options, str(SCRIPTS / self.script)]
        return subprocess.run(
            [*command, self.word, *self.arguments], env={**os.environ, **told}, cwd=folder,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip


@cache
def undisturbed(script: str, folder: Path, *arguments: str) -> dict[str, Any]:
    ran = Job(script, arguments=arguments).run(folder, saved=False)
    assert ran.returncode == 0, ran.stderr
    return read(folder)


def read(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return told


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    weights = one["weights"], other["weights"]
    return float(max(np.abs(np.subtract(weights[0][n], weights[1][n])).max() for n in weights[0]))


def check(job: Job, tmp_path: Path, *, bound: float = 0.0) -> str:
    """Run it with its kills: all that it tells of is as it was undisturbed."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    whole.mkdir()
    folder.mkdir()
    expected = undisturbed(job.script, whole, *job.arguments)
    ran = job.run(folder)
    assert ran.returncode == 0, ran.stderr
    kills = len([*job.updates.split(), *job.evaluations.split()])
    assert ran.stderr.count("Starting again") == kills, ran.stderr
    found = read(folder)
    assert difference(found, expected) <= bound, ran.stderr
    figures = found.keys() - {"weights", "loss", "history", "best"}
    assert {n: found[n] for n in figures} == {n: expected[n] for n in figures}
    for name in ("loss", "best"):
        if name in found:
            assert abs(found[name] - expected[name]) <= 1e-5
    assert "training goes on in epoch" in ran.stderr
    return ran.stderr


STRANGERS = [
    Job("digits.py", updates="19"),
    Job("language.py", "mirrored", 2, updates="21"),
    Job("early.py", updates="23"),
    Job("bar.py", updates="17"),
    Job("accumulated.py", updates="8"),
]


@pytest.mark.parametrize("job", STRANGERS, ids=lambda job: job.script)
def test_strangers_scripts_end_as_undisturbed(job: Job, tmp_path: Path) -> None:
    check(job, tmp_path, bound=0.0 if job.ranks == 1 else 1e-6)


KILLED = {
    "at an epoch's end": Job("digits.py", updates="16"),
    "in evaluation": Job("digits.py", "mirrored", 2, evaluations="16"),
    "twice": Job("digits.py", "sharded", 2, updates="11 13"),
}


@pytest.mark.parametrize("when", KILLED)
def test_wherever_it_is_killed(when: str, tmp_path: Path) -> None:
    job = KILLED[when]
    check(job, tmp_path, bound=0.0 if job.ranks == 1 else 1e-6)


def test_files_that_the_script_saves_stay_what_they_were(tmp_path: Path) -> None:
    """Going through finished epochs again overwrites none, though the model is untrained then."""
    import torch

    place = tmp_path / "model"
    job = Job("digits.py", arguments=("--save-model", str(place)), updates="27")
    whole = tmp_path / "first"
    whole.mkdir()
    assert job.run(whole).returncode == 0
    saved = {n: torch.load(f"{place}.{n}") for n in range(1, 6)}
    check(job, tmp_path)
    again = {n: torch.load(f"{place}.{n}") for n in range(1, 6)}
    for number, state in saved.items():
        assert all(torch.equal(state[name], again[number][name]) for name in state)
    assert not torch.equal(saved[1]["fc1.weight"], saved[2]["fc1.weight"])


UNSEEN = {
    "zipped": "a second loader",
    "by_while": "one by one, by next()",
    "by_hand": "no loader of the block",
    "second": "a second loader",
    "best": "the variable 'kept'",
}


@pytest.mark.parametrize("form", UNSEEN)
def test_what_is_not_seen_is_said_and_begins_anew(form: str, tmp_path: Path) -> None:
    """Nothing of a training is kept by halves: started again, it ends as undisturbed."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    whole.mkdir()
    folder.mkdir()
    expected = undisturbed("refused.py", whole, form)
    job = Job("refused.py", arguments=(form,), updates="25", more={"FATE_WAIT": "0"})
    ran = job.run(folder)
    assert ran.returncode == 0, ran.stderr
    assert SAID in ran.stderr
    assert UNSEEN[form] in ran.stderr
    assert "at = strategy.load(" in ran.stderr
    assert ran.stderr.count("Starting again") == 1
    assert difference(read(folder), expected) == 0.0


def test_a_cycled_loader_is_not_gone_on_with(tmp_path: Path) -> None:
    job = Job("cycled.py", updates="20", more={"FATE_WAIT": "0"})
    ran = job.run(tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "come through cycle" in ran.stderr
    assert not (tmp_path / "kept" / "latest").exists()


def test_another_strategy_is_refused_by_name(tmp_path: Path) -> None:
    ran = Job("bar.py", "local_sgd").run(tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "not yet for 'local_sgd'" in ran.stderr


CHANGED = {
    "raises": "raised ZeroDivisionError",
    "ends": "its training ended before",
    "moved": "its loop is in",
}


@pytest.mark.parametrize("how", CHANGED)
def test_a_replay_that_goes_wrong_is_refused(how: str, tmp_path: Path) -> None:
    """Nothing is overwritten: neither the checkpoint nor the script's own files."""
    ran = Job("changed.py", arguments=("as it was",), updates="14").run(tmp_path)
    assert ran.returncode == 0, ran.stderr
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    ran = Job("changed.py", arguments=(how,)).run(tmp_path)
    assert ran.returncode == 1, ran.stderr
    assert CHANGED[how] in ran.stderr
    assert "at = strategy.load(" in ran.stderr
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
