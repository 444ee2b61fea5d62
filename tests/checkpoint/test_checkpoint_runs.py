"""A job that goes on tells in the runs that it told in before: of the real wandb and mlflow."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from launch_scripts import dream

pytestmark = pytest.mark.slow
SCRIPT = """
import sys
import torch, dream
import {library} as library
library_begins = {begins}
with dream.strategy("mirrored") as strategy:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {before}
    data = torch.utils.data.DataLoader(torch.zeros(4, 2), batch_size=2)
    at = strategy.load({folder}, model=model, optimizer=optimizer, data=data)
    {after}
    strategy.save(sys.argv[1], step=at.step + 1 if at else 1, model=model, optimizer=optimizer,
                  data=data)
    if strategy.topology.rank == 0:
        print("run", {name})
    {ends}
"""
LIBRARIES = {
    "wandb": {"begins": "lambda: library.init(project='p', mode='offline')",
              "name": "library.run.id", "ends": "library.finish()"},
    "mlflow": {"begins": "library.start_run", "name": "library.active_run().info.run_id",
               "ends": "library.end_run()"},
}  # fmt: skip


def run_of(script: str, folder: Path, *asked: str) -> str:
    path = folder.parent / "train.py"
    path.write_text(script)
    ran = dream("run", "-n", "2", *asked, str(path), str(folder))
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.partition("run ")[2].split()[0]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("launched", [True, False], ids=["--checkpoint", "a folder of its own"])
def test_a_job_that_goes_on_tells_in_the_same_run(
    library: str, launched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which begins before load where the launcher knows the folder, and after it where the script
    alone does."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    folder = tmp_path / "runs"
    begin = "library_begins()"
    script = SCRIPT.format(
        library=library, **LIBRARIES[library], folder="" if launched else "sys.argv[1]",
        before=begin if launched else "", after="" if launched else begin,
    ).replace("load(, ", "load(")  # fmt: skip
    asked = ("--checkpoint", str(folder)) if launched else ()
    first, again = (run_of(script, folder, *asked) for _ in range(2))
    assert first == again
    assert run_of(script, tmp_path / "others", *(("--checkpoint", str(tmp_path / "others"))
                                                if launched else ())) != first  # fmt: skip
