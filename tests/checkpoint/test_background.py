"""A checkpoint is of the moment at which it was asked for, though it is written later, by several
ranks; what goes wrong then is raised on each."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launch_scripts import dream
from safetensors.numpy import load_file

from dream._errors import WorkerFailed
from dream.checkpoint import background

SCRIPT = """
import os, resource, sys, time
import torch, dream
from dream.checkpoint.storage.folder import CheckpointFolder

os.chdir(os.path.dirname(sys.argv[1]))
folder = os.path.basename(sys.argv[1])  # where it is when it is asked for
torch.manual_seed(0)
with dream.strategy("sharded") as strategy:
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2200) for _ in range(4)))
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(1.0)
        saving = strategy.save(folder, step=1, model=model)
        os.chdir("/")
        folder = sys.argv[1]
        for value in model.parameters():
            value.fill_(2.0)
    print("whole", (saving.wait() / "COMMITTED").is_file(), str(saving) == str(saving.path))

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if strategy.topology.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    failing = strategy.save(folder, step=2, model=model)
    for again in (lambda: strategy.save(folder, step=3, model=model), failing.wait):
        try:
            again()
        except dream.DreamError as error:
            print("refused", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    at = strategy.load(strategy.save(folder, step=4, model=model), model=model)
    print("read", at.step)
    if strategy.topology.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    else:  # it comes when rank 0 has failed, and may leave nothing either
        write = CheckpointFolder.write
        CheckpointFolder.write = lambda *given: (time.sleep(1.0), write(*given))[1]
    strategy.save(folder, step=5, model=model)
"""
THEN = """
with contextlib.suppress(dream.DreamError):
    with dream.strategy("mirrored") as strategy:
        model = torch.nn.Linear(4, 4)
        strategy.save(os.devnull + "/none", step=1, model=model)
print("after", [x.tolist() for x in torch.utils.data.DataLoader(range(4), batch_size=2)])
with dream.strategy("mirrored") as strategy:
    if sys.argv[2] == "complex":
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 4096) for _ in range(2)))
        model.register_buffer("wave", torch.zeros(1, dtype=torch.complex128))
        strategy.save(sys.argv[1], step=1, model=model).wait()
    model = torch.nn.Linear(4, 4)
    strategy.save(sys.argv[1], step=2, model=model)
    raise ValueError("a bug of the script")
"""


@pytest.mark.slow
def test_ranks_write_their_shares_while_training_goes_on(tmp_path: Path) -> None:
    script, folder = tmp_path / "save.py", tmp_path / "run"
    script.write_text(SCRIPT)
    ran = dream("run", "-n", "2", "--all-output", str(script), str(folder))
    assert ran.stdout.count("whole True True") == 2, ran.stderr[-2000:]
    refused = [line for line in ran.stdout.splitlines() if "refused The checkpoint was not" in line]
    assert len(refused) == 4
    assert all("step-000000002 (File too large)" in line for line in refused)
    assert ran.stdout.count("read 4") == 2
    assert ran.returncode == 1  # the last one's error is the block's
    assert "step-000000005 (File too large)" in ran.stderr
    assert sorted(p.name for p in folder.iterdir()) == [
        "latest", "step-000000001", "step-000000004",
    ]  # fmt: skip
    place = folder / "step-000000001"
    where = json.loads((place / "model.safetensors.index.json").read_text())["weight_map"]
    assert len({*where.values()}) == 2
    for file in {*where.values()}:
        for name, array in load_file(place / file).items():
            assert where[name] == file
            assert (array == 1.0).all(), name


@pytest.mark.slow
def test_a_process_that_ends_by_an_error_has_saved(tmp_path: Path) -> None:
    """And an error at a block's end leaves nothing of the block behind."""
    script, folder = tmp_path / "save.py", tmp_path / "run"
    script.write_text("import contextlib, os, sys\nimport torch, dream\n" + THEN)
    ran = dream("run", "-n", "2", "--all-output", str(script), str(folder), "")
    assert "a bug of the script" in ran.stderr
    assert ran.stdout.count("after [[0, 1], [2, 3]]") == 2, ran.stdout
    assert {p.name for p in folder.iterdir()} == {"latest", "step-000000002"}
    ran = dream("run", "-n", "2", "--all-output", str(script), str(tmp_path / "not"), "complex")
    assert ran.stderr.count("complex128") >= 2, ran.stderr  # the rank that writes it, and rank 0


def test_a_rank_that_is_gone_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what it said at last."""
    found: list[bytes | None] = [None, None, None, b"{}"]
    store = SimpleNamespace(find=lambda _: found.pop(0), delete=lambda _: None)
    monkeypatch.setattr(background, "_store", lambda: store)
    monkeypatch.setattr(background.stall, "gone", lambda rank: rank == 1)
    begun: Any = SimpleNamespace(part=Path("part"), place=Path("place"))
    with pytest.raises(WorkerFailed, match="Received: place, nothing from rank 1"):
        background._told_by(begun, 1, 0)
    assert background._told_by(begun, 1, 0) == {}
