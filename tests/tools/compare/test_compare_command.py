"""`dream compare` on the digits, as the user runs it."""

import json

import pytest
import typer
from typer.testing import CliRunner

from dream.tools.compare.command import command


def compare(tmp_path, *arguments):
    """The exit code, what was shown, and the cells as written."""
    app = typer.Typer()
    app.command()(command)
    file = tmp_path / "out.json"
    result = CliRunner().invoke(app, [*arguments, "--json", str(file)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output, json.loads(file.read_text())


def test_torch(tmp_path):
    code, shown, read = compare(
        tmp_path, "-n", "2", "--epochs", "1", "--strategies", "single,mirrored", "--rounds", "1",
        "--frameworks", "torch",
    )  # fmt: skip
    assert code == 0, shown
    single, mirrored = read["cells"]
    assert mirrored["verdict"] == "equal"
    assert 0 < mirrored["largest_parameter_difference"] <= 1e-6
    assert mirrored["losses"] == pytest.approx(single["losses"], abs=1e-6)
    assert mirrored["test_score"] == pytest.approx(single["test_score"], abs=0.003)
    assert len(set(mirrored["parameter_digests"])) == 1
    assert min(mirrored["peak_bytes_per_rank"]) > 5e7
    assert "without the first step" in " ".join(shown.split())
    assert "All 2 rows learned the weights of single" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "loss", "score"),
    [
        ("digits-mlp", 0.3, 0.9),
        pytest.param("digits-cnn", 0.5, 0.9, marks=pytest.mark.exhaustive),
        pytest.param("transformer", 2.8, 0.2, marks=pytest.mark.exhaustive),
        pytest.param("regression", 0.6, 0.25, marks=pytest.mark.exhaustive),
    ],
)
def test_the_frameworks_walk_the_same_curve(tmp_path, task, loss, score):
    code, shown, read = compare(tmp_path, "--strategies", "single", "--rounds", "1", "--task", task)
    assert code == 0, shown
    assert [cell["framework"] for cell in read["cells"]] == ["torch", "tensorflow", "keras-torch"]
    assert read["loss_difference_between_frameworks"] < 2e-6
    for cell in read["cells"]:
        assert cell["losses"][-1] < loss
        assert cell["test_score"] > score


@pytest.mark.exhaustive
def test_every_row_at_three_ranks(tmp_path):
    """Torch's rows; those of Keras at three ranks are the contract suite's. The model has two
    layers, and says so to three stages. Three workers that do not wait would want a lower learning
    rate than the task's."""
    split = "data_parallel,sharded,model_parallel:split=tensor,model_parallel:split=pipeline"
    names = f"single,mirrored,horovod,local_sgd,{split}"
    code, shown, read = compare(
        tmp_path, "-n", "3", "--frameworks", "torch", "--strategies", names, "--rounds", "1"
    )
    assert code == 0, shown
    verdicts = {cell["strategy"]: cell["verdict"] for cell in read["cells"]}
    assert verdicts.pop("model_parallel:split=pipeline") == "refused"
    assert set(verdicts.values()) == {"the oracle", "equal", "learns"}
    ran = [cell for cell in read["cells"][1:] if cell["verdict"] != "refused"]
    assert {cell["replicas"] for cell in ran} == {3}
