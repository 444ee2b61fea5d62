"""An untouched script's runs of wandb and mlflow in a job: one run, with each value once. The real
libraries, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

LIMIT = 300
WANDB = """
import torch
import os
from wandb import init
import wandb
import dream

rank = int(os.environ["RANK"])
with dream.strategy("mirrored"):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(6, 2)
    for named in (init, wandb.init):
        with named(project="p", config={"lr": 0.1}, mode="offline") as run:
            run.watch(model, log="all", log_freq=1)
            wandb.define_metric("loss", summary="min")
            for step in range(3):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                wandb.log({"loss": loss.item()}, step=step, commit=False)
                wandb.log({"lr": 0.1}, step=step)
            run.summary["best"] = loss.item()
            assert wandb.config["lr"] == 0.1 and run.name != ""
            open("weights.txt", "a").close()
            wandb.save("weights.txt")
            torch.save(model.state_dict(), "saved.pt")  # rank 0's, which another waits for
            artifact = wandb.Artifact("saved", type="model")
            artifact.add_file("saved.pt")
            run.log_artifact(artifact)
    try:
        rank and wandb.agent("none/none/none", print)
    except dream.Unsupported as error:
        print("refused:", error)
    left = wandb.init(project="p", mode="offline")
left.log({"loss": 1.0})
left.finish()
"""


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "2", "--log-dir", "logs", "script.py",
         *arguments],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MLFLOW_ALLOW_FILE_STORE": "true"},
    )  # fmt: skip
    logs = "".join(log.read_text() for log in (folder / "logs").glob("*"))
    assert done.returncode == 0, done.stderr + logs
    return done


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("wandb"), reason="wandb is not installed")
def test_a_run_of_wandb_is_begun_once(tmp_path: Path) -> None:
    run(WANDB, tmp_path)
    assert "refused: Each rank" in (tmp_path / "logs" / "rank1.log").read_text()
    folders = sorted(tmp_path.glob("wandb/offline-run-*"))
    assert len(folders) == 3, folders


MLFLOW = """
import os, random, sys, torch
import mlflow
import dream

rank = int(os.environ["RANK"])
random.seed(3)
with dream.strategy("mirrored"):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(6, 2)
    mlflow.set_experiment("digits")
    with mlflow.start_run() as run:
        mlflow.log_params({"lr": 0.1})
        for step in range(3):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mlflow.log_metric("loss", loss.item(), step=step)
        mlflow.log_text("whole", "notes.txt")
        torch.save(model.state_dict(), "saved.pt")  # rank 0's, which another waits for
        mlflow.log_artifact("saved.pt")
        if not rank:
            os.mkdir("rank0")
        mlflow.log_artifact("rank0")
        mlflow.set_tag("kind", "small")
    seen = mlflow.get_run(run.info.run_id).data
    assert seen.params["lr"] == "0.1" and seen.tags["kind"] == "small"
    assert mlflow.artifacts.load_text(run.info.artifact_uri + "/notes.txt") == "whole"
    assert len(mlflow.search_runs(experiment_names=["digits"], output_format="list")) == 1
    mlflow.set_experiment(experiment_id=sys.argv[2])
    with mlflow.start_run(run_id=sys.argv[1]):
        mlflow.log_metric("again", 1.0)
    mlflow.start_run(experiment_id=sys.argv[2], run_name="left open")
    torch.save(torch.tensor(random.random()), f"drawn{rank}.pt")
mlflow.log_metric("after", 1.0)
mlflow.end_run()
"""


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # mlflow's, of its database
def test_a_run_of_mlflow_is_begun_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is begun, one that is gone on with, and one that ends after the block."""
    import mlflow
    import torch

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    mlflow.set_tracking_uri(where)
    experiment = mlflow.create_experiment("before")
    client = mlflow.MlflowClient()
    gone_on = client.create_run(experiment).info.run_id
    run(MLFLOW, tmp_path, gone_on, experiment)
    found = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert len(found) == 3, [each.data.tags for each in found]
    assert {each.info.status for each in found} == {"FINISHED"}
    counts = {
        name: [len(client.get_metric_history(each.info.run_id, name)) for each in found]
        for name in ("loss", "again", "after")
    }
    assert {name: sorted(each) for name, each in counts.items()} == {
        "loss": [0, 0, 3], "again": [0, 0, 1], "after": [0, 0, 1],
    }  # fmt: skip
    drawn = [float(torch.load(tmp_path / f"drawn{rank}.pt")) for rank in range(2)]
    assert drawn[0] == drawn[1]


FRESH = """
import mlflow
import torch
import dream

with dream.strategy("mirrored"):
    model = torch.nn.Linear(2, 1)
    with mlflow.start_run():
        mlflow.log_metric("loss", 1.0)
        mlflow.pytorch.log_model(model, name="model", serialization_format="pickle")
    mlflow.pytorch.log_model(model, name="model", serialization_format="pickle")
"""


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # mlflow's, of its database
def test_one_rank_makes_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none yet, two that make it at a time break it. A model is logged in a run, and
    in none."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    run(FRESH, tmp_path)
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    assert len(mlflow.search_runs(output_format="list")) == 1
    assert len(mlflow.search_logged_models(output_format="list")) == 2
