"""`dream compare SCRIPT`: good scripts, and each bad one with a clear line."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dream import ConfigurationError
from dream.tools.compare import runner
from dream.tools.compare.cells import Cell
from dream.tools.compare.command import command
from dream.tools.compare.main import main
from dream.tools.compare.settings import Settings, TaskJob, named_items, script_asked
from dream.tools.verify.runs import Broken

TRAINS = """
import sys
import torch
from torch import nn
import dream

torch.manual_seed(0)
x = torch.randn(41, 4)
y = x.sum(1, keepdim=True)
with dream.strategy("mirrored"):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.utils.data.TensorDataset(x, y)
    for _ in range(2):
        for a, b in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
"""
CRASHES_ALONE = TRAINS.replace(
    "with dream.strategy",
    "if dream.cluster.detect().alone:\n    raise ValueError('not alone')\nwith dream.strategy",
).replace("import dream", "import dream, dream.cluster")
NO_LOSS = """
import torch
import dream

with dream.strategy("mirrored"):
    model = torch.nn.Linear(2, 1)
    model(torch.ones(3, 2))
"""


def settings(path, *arguments, timeout=400.0):
    return Settings(TaskJob(1, 64), {}, timeout, 1, ("script", str(path), *arguments))


def compare(tmp_path, text, strategies, frameworks=()):
    script, out = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(text)
    good = main(2, list(frameworks), strategies, settings(script), out)
    return good, json.loads(out.read_text())


@pytest.mark.slow
def test_a_script_is_run_unchanged_under_each_strategy(tmp_path, capsys):
    asked_for = ["mirrored", "sharded", "mirrored:reduction=grpc", "local_sgd:every=2"]
    good, read = compare(tmp_path, TRAINS, asked_for)
    assert good, capsys.readouterr().out
    single, mirrored, sharded, lacking, local = read["cells"]
    assert single["framework"] == "torch"
    assert (mirrored["verdict"], mirrored["steps"]) == ("equal", 12)
    assert 0 <= mirrored["largest_parameter_difference"] <= 1e-6
    assert mirrored["losses"] == pytest.approx(single["losses"], abs=1e-6)
    assert len(mirrored["peak_bytes_per_rank"]) == 2
    assert (sharded["verdict"], local["verdict"]) == ("equal", "learns")
    assert lacking["verdict"] == "skipped"
    assert "torch cannot use this reduction" in lacking["reason"]
    assert (read["unit"], read["cells"][0]["losses_by"]) == ("steps/s", "step")
    assert "torch cannot use this reduction" in capsys.readouterr().out


ATTENDS = """
import torch
from torch import nn
import dream

torch.manual_seed(0)
x = torch.randn(60, 8)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = x.reshape(-1, 1, 8) * torch.linspace(0.5, 2, 5).reshape(1, 5, 1)
        return self.attention(x, x, x, need_weights=False)[0].mean(1)


with dream.strategy("mirrored"):
    model = Attending()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        for (a,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=20):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), a).backward()
            optimizer.step()
"""


@pytest.mark.slow
def test_what_is_off_by_rounding_alone_is_equal_as_in_verify(tmp_path, capsys):
    """Attention's key bias has a gradient of nothing but rounding, of which Adam makes steps."""
    good, read = compare(tmp_path, ATTENDS, ["mirrored"], ["torch"])
    shown = capsys.readouterr().out
    assert good, shown
    _, mirrored = read["cells"]
    assert mirrored["verdict"] == "equal"
    assert mirrored["largest_parameter_difference"] > mirrored["largest_allowed"]
    assert "attention.in_proj_bias differs by" in mirrored["reason"]
    assert "1 of them a parameter is further off, by rounding alone" in " ".join(shown.split())


@pytest.mark.slow
def test_a_row_that_names_another_framework_than_the_script_trains_with(tmp_path):
    script, left = tmp_path / "train.py", tmp_path / "left"
    script.write_text(TRAINS)
    left.mkdir()
    outcome = runner.run_script(Cell("tensorflow", "single", 1), settings(script), left)
    assert isinstance(outcome, Broken)
    assert "trains with torch, not with tensorflow" in outcome.reason


@pytest.mark.slow
def test_where_single_crashes_the_others_still_run(tmp_path):
    good, read = compare(tmp_path, CRASHES_ALONE, ["mirrored"])
    assert not good
    single, mirrored = read["cells"]
    assert single["verdict"] == "CRASHED"
    assert "not alone" in single["reason"]
    assert mirrored["verdict"] == "UNPROVEN"
    assert len(mirrored["losses"]) == 12


@pytest.mark.slow
def test_a_loss_that_is_never_computed(tmp_path):
    good, read = compare(tmp_path, NO_LOSS, ["mirrored"])
    assert not good
    assert [cell["reason"] for cell in read["cells"]] == [runner.NO_LOSS] * 2


def test_a_script_without_a_block_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ConfigurationError, match=r"train\.py.*entered no block.*Put what"):
        compare(tmp_path, "print('hello')", ["mirrored"])


def test_a_script_that_crashes_before_anything_is_known(tmp_path):
    with pytest.raises(ConfigurationError, match=r"(?s)cannot be compared.*ZeroDivisionError"):
        compare(tmp_path, "1 / 0", ["mirrored"])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch", "torch"),
        ("from torch.nn import functional", "torch"),
        ("import tensorflow as tf", "tensorflow"),
        ("import keras", "tensorflow"),
        ("import torch, keras", "keras-torch"),
        ("import numpy", ""),
        ("import (", ""),
    ],
)
def test_a_script_that_left_no_record_is_known_by_its_imports(tmp_path, text, name):
    (tmp_path / "train.py").write_text(text)
    assert runner.framework_of(tmp_path, tmp_path / "train.py") == name


def test_what_is_asked_of_a_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    assert script_asked([]) == ()
    assert script_asked([str(script), "--lr", "1"]) == ("script", str(script), "--lr", "1")
    assert script_asked(["-m", "pack.train", "-m", "1"]) == ("module", "pack.train", "-m", "1")
    with pytest.raises(ConfigurationError, match=r"No such option\. Received: --bogus"):
        script_asked(["--bogus", "1"])
    with pytest.raises(ConfigurationError, match="No such script"):
        script_asked([str(tmp_path / "absent.py")])
    with pytest.raises(ConfigurationError, match=r"--batch-size 8. Remove"):
        script_asked([str(script)], task=None, batch_size=8)
    with pytest.raises(ConfigurationError, match=r"--epochs 0. Remove .* -- --epochs 0"):
        script_asked([str(script)], epochs=0, mixed=False)


def test_a_list_that_was_given_names_something():
    assert named_items("--frameworks", "") == []
    assert named_items("--frameworks", "torch, tensorflow") == ["torch", "tensorflow"]
    with pytest.raises(ConfigurationError, match=r"names nothing\. Received: --frameworks ','"):
        named_items("--frameworks", ",")


def test_options_of_the_scripts_own_reach_it(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(
        "dream.tools.compare.main.main", lambda *a, **k: given.append((a, k)) or True
    )
    app = typer.Typer()
    app.command(context_settings={"ignore_unknown_options": True})(command)
    script = Path(tmp_path, "train.py")
    script.write_text("")
    result = CliRunner().invoke(app, [str(script), "--lr", "0.1", "--report", "out", "-n", "3"])
    assert result.exit_code == 0, result.output
    (n, _, _, settings, _, folder), _ = given[0]
    assert (n, folder) == (3, Path("out"))
    assert settings.script == ("script", str(script), "--lr", "0.1")
