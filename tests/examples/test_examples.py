"""The examples, as they stand: by themselves and under `dream run`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCH = ("digits_torch.py", "")
KERAS = pytest.param("digits_keras.py", "tensorflow", marks=pytest.mark.slow)
KERAS_TORCH = pytest.param("digits_keras.py", "torch", marks=pytest.mark.slow)
RUN = ["-c", "from dream.cli import main; main()", "run", "-n", "2"]


def accuracy(backend, *line):
    """What the script prints at its end, and that it prints it once."""
    (found,) = re.findall(r"test accuracy ([\d.]+)", output(backend, *line))
    return float(found)


def output(backend, *line):
    """All that rank 0 prints."""
    env = os.environ | ({"KERAS_BACKEND": backend} if backend else {})
    done = subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, timeout=400, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("script", "backend"), [TORCH, KERAS, KERAS_TORCH])
def test_alone(script, backend):
    assert accuracy(backend, str(EXAMPLES / script)) > 0.9


@pytest.mark.parametrize(("script", "backend"), [TORCH, KERAS, KERAS_TORCH])
def test_on_two_ranks(script, backend):
    assert accuracy(backend, *RUN, str(EXAMPLES / script)) > 0.9


@pytest.mark.parametrize(("script", "backend"), [TORCH, KERAS])
def test_one_word_changes_the_strategy(script, backend, tmp_path):
    text = (EXAMPLES / script).read_text()
    assert text.count('strategy("mirrored")') == 1
    changed = tmp_path / script
    changed.write_text(text.replace('strategy("mirrored")', 'strategy("multi_worker_mirrored")'))
    assert accuracy(backend, *RUN, str(changed)) > 0.9


@pytest.mark.parametrize(
    "line", [pytest.param([], id="alone"), pytest.param([*RUN, "--framework", "torch,tensorflow"],
                                                        id="mixed", marks=pytest.mark.slow)]
)  # fmt: skip
def test_one_ring_for_two_frameworks(line):
    found = output("", *line, str(EXAMPLES / "mixed_ring.py"))
    ((rank, accuracy, apart),) = re.findall(
        r"rank (\d) \(torch\): test accuracy ([\d.]+), weights at most (\S+) from", found
    )
    assert rank == "0"
    assert float(accuracy) > 0.9
    assert float(apart) <= 1e-5


@pytest.mark.slow
def test_a_hasty_port_is_told_from_a_true_one():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "port_check.py")],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The padding differs: old ((1, 1), (1, 1)), new ((0, 1), (0, 1))." in done.stdout
    assert "momentum: old 0.9, new 0.99." in done.stdout
    assert "hasty: not equal" in done.stdout
    assert "true: equal" in done.stdout
