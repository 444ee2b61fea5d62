"""Checkpoints on the disk: whole or not there, whatever happens to the one that writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dream import ConfigurationError, DreamError, Unsupported
from dream.checkpoint import CheckpointContent, CheckpointFolder, OptimizerState, check_arrays
from dream.checkpoint.storage.allotment import Allotment
from dream.checkpoint.storage.folder import arrays_of, state_of
from dream.checkpoint.storage.words import from_json, to_json

WRITER = """
import sys
import numpy as np
from dream.checkpoint import CheckpointContent, CheckpointFolder
folder = CheckpointFolder(sys.argv[1], keep=2)
step = 0
while True:
    step += 1
    folder.save(CheckpointContent(step, {"": {"w": np.full(40_000, step, np.float32)}}))
    if step == 3:
        print("going", flush=True)
"""


def made(step: int, **more: object) -> CheckpointContent:
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3) + step, "n": np.array(step)}
    slots = OptimizerState(
        "SGD", {"w/momentum_buffer": np.ones((2, 3))}, {"w/step": 3}, [{"lr": 0.1, "names": ["w"]}]
    )
    return CheckpointContent(step, {"": weights}, {"": slots}, **more)  # type: ignore[arg-type]


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "runs" / "a")
    assert folder.newest() is None
    milestones = {"": {"milestones": Counter({30: 1})}}
    extra = {"loss": 0.5, "tuple": (1, None)}
    saved = made(
        7, extra=extra, data={"epoch": 2}, schedulers=milestones, random={"torch": b"\x00\xff"}
    )
    place = folder.save(saved)
    assert folder.newest() == place
    read = folder.load(place)
    assert (read.step, read.extra, read.data) == (7, saved.extra, saved.data)
    assert (read.schedulers, read.random) == (saved.schedulers, saved.random)
    for name, array in saved.models[""].items():
        np.testing.assert_array_equal(read.models[""][name], array)
        assert read.models[""][name].dtype == array.dtype
    assert read.optimizers[""].numbers == {"w/step": 3}
    assert read.optimizers[""].groups == [{"lr": 0.1, "names": ["w"]}]


def test_several_models_and_several_files(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, largest=100)
    models = {name: {f"{i}": np.full(9, i, np.float32) for i in range(5)} for name in ("g", "d")}
    place = folder.save(CheckpointContent(1, models))
    index = json.loads((place / "model.safetensors.index.json").read_text())
    assert len({*index["weight_map"].values()}) == 5
    read = folder.load(place)
    assert [*read.models] == ["g", "d"]
    np.testing.assert_array_equal(read.models["d"]["4"], models["d"]["4"])


def test_others_read_the_weights_without_dream(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    place = CheckpointFolder(tmp_path).save(made(1))
    assert load_file(place / "model.safetensors")["w"].tolist() == [[1, 2, 3], [4, 5, 6]]


DTYPES = ["f8", "f4", "f2", "c8", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]


def test_arrays_of_every_kind_come_back(tmp_path: Path) -> None:
    """As the library reads them too; a bfloat16, which NumPy has not by itself, among them."""
    from safetensors.numpy import load_file

    made_of = {code: np.arange(7).astype(code) for code in DTYPES}
    arrays = {**made_of, "none": np.zeros((0, 3)), "one": np.array(2.5), "T": np.eye(3)[:, 1:].T}
    half = {"half": np.arange(3).astype(pytest.importorskip("ml_dtypes").bfloat16)}
    folder = CheckpointFolder(tmp_path)
    place = folder.save(CheckpointContent(1, {"": {**arrays, **half}}))
    read = folder.load(place).models[""]
    assert read.keys() == {*arrays, "half"}
    for name, array in {**arrays, "half": half["half"].astype("f4")}.items():  # which holds it
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
        assert read[name].flags.writeable  # others take no arrays that can only be read
    place = folder.save(CheckpointContent(2, {"": arrays}))
    for name, array in load_file(place / "model.safetensors").items():
        np.testing.assert_array_equal(array, arrays[name])


def test_few_stay_and_the_best_with_them(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2, best="loss")
    for step, loss in enumerate([0.5, 0.1, 0.4, 0.3, 0.2], 1):
        folder.save(made(step, extra={"loss": loss}))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["latest", "step-000000002", "step-000000004", "step-000000005"]


def test_a_step_that_is_saved_again_is_never_not_there(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(made(4, extra={"n": 1}))
    folder.save(made(4, extra={"n": 2}))
    newest = folder.newest()
    assert newest is not None
    assert folder.load(newest).extra == {"n": 2}
    assert len([*tmp_path.glob("step-*")]) == 1


def test_killed_at_any_moment_what_is_there_is_whole(tmp_path: Path) -> None:
    for attempt in range(6):
        path = tmp_path / str(attempt)
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.003 * attempt)
            writer.send_signal(signal.SIGKILL)
        folder = CheckpointFolder(path)
        place = folder.newest()
        assert place is not None
        read = folder.load(place)
        assert read.step >= 3
        assert {*read.models[""]["w"].tolist()} == {float(read.step)}
        folder.save(made(read.step + 1))
        assert not [*path.glob(".part-*")]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(made(1))
    (tmp_path / ".part-00ab").mkdir()
    (tmp_path / ".part-00ab" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".part-00cd.latest").write_bytes(b"step-")
    folder.save(made(2))
    assert not [*tmp_path.glob(".part-*")]


def test_a_rank_that_comes_late_and_writes_nothing_leaves_nothing(tmp_path: Path) -> None:
    folder, checkpoint = CheckpointFolder(tmp_path, in_memory=True), made(15)
    kinds, allotment = arrays_of(checkpoint), Allotment()
    for kind, arrays in kinds.items():
        for name, array in arrays.items():
            allotment.takes(kind, name, array.nbytes)
    begun = folder.begin_alike(15, 2)
    folder.commit(begun, allotment, state_of(checkpoint), folder.write(begun, allotment, kinds))
    folder.begin_alike(15, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000015"]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda p: (p / "COMMITTED").unlink(), "not a complete checkpoint"),
        (lambda p: os.truncate(p / "model.safetensors", 20), "20 bytes"),
        (lambda p: (p / "optimizer.safetensors").unlink(), "it is not there"),
        (lambda p: (p / "state.json").write_text("{}"), "its digest is another"),
    ],
)
def test_what_is_not_whole_is_refused(tmp_path: Path, harm: object, words: str) -> None:
    folder = CheckpointFolder(tmp_path)
    place = folder.save(made(1))
    harm(place)  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match=words):
        folder.load(place)


def test_a_half_one_is_passed_over(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    first = folder.save(made(1))
    (folder.save(made(2)) / "COMMITTED").unlink()
    assert folder.newest() == first


def test_a_byte_that_changed_is_found(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    file = folder.save(made(1)) / "model.safetensors"
    text = bytearray(file.read_bytes())
    text[-1] ^= 1
    file.write_bytes(text)
    with pytest.raises(ConfigurationError, match="digest"):
        folder.load(file.parent)


def test_bad_places(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match="a file"):
        CheckpointFolder(file).newest()
    with pytest.raises(DreamError, match="was not written"):
        CheckpointFolder(file).save(made(1))
    with pytest.raises(ConfigurationError, match="keep=0"):
        CheckpointFolder(tmp_path, keep=0)


def test_a_full_disk_leaves_the_last_one_whole(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root alone")
    small = tmp_path / "small"
    small.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        folder = CheckpointFolder(small)
        place = folder.save(made(1))
        with pytest.raises(DreamError, match=r"step-000000002.*1 MB.*Free some space"):
            folder.save(CheckpointContent(2, {"": {"w": np.zeros(1 << 20)}}))
        assert folder.newest() == place
        assert folder.load(place).step == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_another_model_is_told_by_the_first_difference() -> None:
    saved = {"a": np.zeros((2, 3)), "b": np.zeros(1)}
    check_arrays("weights", saved, {"a": (2, 3), "b": (1,)})
    with pytest.raises(ConfigurationError, match=r"'a' of shape \(2, 3\) in it, \(3, 2\) here"):
        check_arrays("weights", saved, {"a": (3, 2), "b": (1,)})
    with pytest.raises(ConfigurationError, match="'c' here alone"):
        check_arrays("weights", saved, {"a": (2, 3), "c": (1,)})


@pytest.mark.parametrize(
    "value",
    [
        (1, 2.5),
        {1: "a", "b": None},
        Counter("aab"),
        b"\x00",
        float("inf"),
        {"!tuple": [1]},
        [[], {}],
    ],
)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    back = from_json(json.loads(json.dumps(to_json(value, "value"))))
    assert back == value
    assert type(back) is type(value)


def test_what_is_no_plain_value_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"extra\['a'\]\[0\], a object"):
        to_json({"a": [object()]}, "extra")
