"""`dream checkpoint`: what is in a folder, whether it is whole, and other tools' files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launch_scripts import alone, keras_on

from dream.checkpoint import CheckpointContent, CheckpointFolder, OptimizerState
from dream.cli import main
from dream.launch.forks.foresight import IMPORTS

WITHOUT = """
import sys
from dream.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
loaded = {"torch", "tensorflow", "keras"} & set(sys.modules)
assert not loaded, loaded
"""
KERAS = """
import sys, dream, keras, torch, numpy as np
from pathlib import Path
from dream.cli import main
from dream.checkpoint import CheckpointFolder
folder = Path(sys.argv[1])
def made():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
model = made()
model.save(folder / "like.keras")
def run(*words):
    try:
        main(["checkpoint", "convert", *map(str, words)])
    except SystemExit as end:
        assert not end.code, end.code
run(folder / "like.keras", folder / "ours")
run(folder / "ours", folder / "out.weights.h5", "--like", folder / "like.keras")
run(folder / "ours", folder / "out.keras", "--like", folder / "like.keras")
run(folder / "out.weights.h5", folder / "again", "--like", folder / "like.keras")
other = made()
other.load_weights(folder / "out.weights.h5")
read = keras.models.load_model(folder / "out.keras")
kept = CheckpointFolder(folder / "again")
arrays = kept.load(kept.newest()).models[""]
named = [arrays[f"{layer}/{name}"] for layer in ("dense", "dense_1") for name in ("kernel", "bias")]
assert len(arrays) == 4
for each in (other.weights, read.weights, named):
    for ours, theirs in zip(each, model.weights, strict=True):
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
with dream.strategy("single", framework="torch") as strategy:
    strategy.save(folder / "torch", step=1, model=net).wait()
run(folder / "torch", folder / "ported.keras", "--like", folder / "like.keras")
inputs = torch.randn(5, 3)
read = keras.models.load_model(folder / "ported.keras")
torch.testing.assert_close(read(inputs).cpu(), net(inputs))
"""
TORCH = """
import sys, torch
from pathlib import Path
from dream.cli import main
from dream.checkpoint import CheckpointFolder
folder = Path(sys.argv[1])
def run(*words):
    try:
        main(["checkpoint", "convert", *map(str, words)])
    except SystemExit as end:
        assert not end.code, end.code
run(folder / "ours", folder / "out.pt")
run(folder / "ours", folder / "out.dcp")
run(folder / "out.dcp", folder / "back")
run(folder / "out.pt", folder / "back2")
said = torch.load(folder / "out.pt", weights_only=True)
assert said["model"]["a.weight"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
torch.save(torch.nn.Linear(2, 2).state_dict(), folder / "plain.pt")
run(folder / "plain.pt", folder / "plain")
for name in ("model", "optimizer"):
    told = {(folder / where / "step-000000007" / f"{name}.safetensors").read_bytes()
            for where in ("ours", "back", "back2")}
    assert len(told) == 1, name
"""


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    folder = tmp_path / "ours"
    weights = {"a.weight": np.arange(4, dtype=np.float32).reshape(2, 2)}
    slots = OptimizerState(
        "SGD", {"a.weight/momentum_buffer": np.ones((2, 2), np.float32)}, {},
        [{"lr": 0.1, "params": ["a.weight"]}],
    )  # fmt: skip
    facts = {"names": "torch", "strategy": "sharded", "world_size": 2, "dream": "0.1.0"}
    for step in (3, 7):
        data = {"epoch": 1, "batches": step}
        CheckpointFolder(folder).save(
            CheckpointContent(step, {"": weights}, {"": slots}, data=data, facts=facts)
        )
    return folder


def command(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", *map(str, words)])
    return int(ended.value.code or 0)


def test_it_shows_what_is_there(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("show", ours, "--arrays") == 0
    told = capsys.readouterr().out
    for said in ("step 7", "torch, sharded, 2 ranks, dream 0.1.0", "SGD of 1 parameter",
                 "epoch 1, 7 batches into it", "step-000000003", "a.weight/momentum_buffer",
                 "2x2"):  # fmt: skip
        assert said in told


def test_a_flipped_bit_is_named(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("check", ours) == 0
    assert capsys.readouterr().out.count("whole") == 2
    file = ours / "step-000000003" / "optimizer.safetensors"
    text = bytearray(file.read_bytes())
    text[-1] ^= 1
    file.write_bytes(text)
    (ours / "step-000000009").mkdir()
    assert command("check", ours) == 1
    told = capsys.readouterr().out
    assert "step-000000003/optimizer.safetensors: its digest is another" in told
    assert "step-000000007: whole" in told
    assert "step-000000009: This is not a complete checkpoint" in told


@pytest.mark.parametrize("words", [("show", "--arrays"), ("check",)], ids=" ".join)
def test_no_framework_is_needed(ours: Path, words: tuple[str, ...]) -> None:
    given = [sys.executable, "-c", WITHOUT, "checkpoint", words[0], str(ours), *words[1:]]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("text", [TORCH, KERAS], ids=["torch", "keras"])
def test_other_tools_files(ours: Path, text: str) -> None:
    env = {IMPORTS: "torch", "KERAS_BACKEND": "torch"} if text is TORCH else keras_on("torch")
    folder = ours.parent if text is TORCH else ours.parent / "keras"
    folder.mkdir(exist_ok=True)
    script = ours.parent / "script.py"
    script.write_text(text)
    done = alone([str(script), str(folder)], env[IMPORTS], env)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", ["nothing", "file.npz", "empty"])
def test_nothing_is_not_whole(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.npz").touch()
    (tmp_path / "empty").mkdir()
    assert command("check", tmp_path / name) == 2
    assert "folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("nothing", "a.pt"), "which is not there"),
        (("ours", "there.pt"), "Existing files are not overwritten"),
        (("there.pt", "ours"), "Existing files are not overwritten"),
        (("ours", "a.bin"), r"from and to .pt, .keras"),
        (("ours", "a.keras"), "Pass --like MODEL.keras"),
    ],
)
def test_what_cannot_be_converted(
    ours: Path, names: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (ours.parent / "there.pt").touch()
    assert command("convert", *(ours.parent / name for name in names)) in (1, 2)
    assert said.replace("\\", "") in capsys.readouterr().err
