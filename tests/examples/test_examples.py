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
    env = os.environ | ({"KERAS_BACKEND": backend} if backend else {})
    done = subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, timeout=400, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = re.findall(r"test accuracy ([\d.]+)", done.stdout)
    return float(found)


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


def pictures(*line):
    """What examples/collectives.py prints: call -> its picture, a line a rank."""
    done = subprocess.run([sys.executable, *line], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    text = re.sub(r"^\[0\] ", "", done.stdout, flags=re.MULTILINE)
    blocks = [block.splitlines() for block in text.split("\n\n")]
    drawn = [[" ".join(rank.split()) for rank in ranks] for _, _, *ranks in blocks[1:]]
    calls = [call for call, *_ in blocks[1:]]
    assert len({*calls}) == len(calls)
    return blocks[0], dict(zip(calls, drawn, strict=True))


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_collectives_are_drawn(framework):
    script = str(EXAMPLES / "collectives.py")
    run = [*RUN[:-1], "3"]
    said, drawn = pictures(*run, script, "--framework", framework)
    assert said[0].startswith(f"3 ranks on {framework}, over g")
    assert len(drawn) == 14
    assert drawn['all_reduce(x, "sum")'][1] == "rank 1 [10, 11, 12] -> [30, 33, 36]"
    assert drawn["all_reduce(x)"][2] == "rank 2 [2.5] -> [1.5]"
    assert drawn['reduce(x, "sum", root=0)'][1:] == [
        "rank 1 [10, 11, 12] -> -",
        "rank 2 [20, 21, 22] -> -",
    ]
    assert drawn["all_gather(x)"][1] == "rank 1 [10, 11] -> [0, 10, 11, 20, 21, 22]"
    assert drawn["scatter(parts, root=0)"] == [
        "rank 0 [0] [1] [2] -> [0]",
        "rank 1 - -> [1]",
        "rank 2 - -> [2]",
    ]
    assert drawn['reduce_scatter(x, "sum")'][2] == "rank 2 [20, 21, 22] -> [36]"
    assert drawn["all_to_all(x)"][1] == "rank 1 [10, 11, 12] -> [1, 11, 21]"
    assert drawn["send(x, to=...)"][0] == "rank 0 [0, 1, 2] -> [20, 21, 22]"
    assert drawn['group([0, 2]).all_reduce(x, "sum")'] == [
        "rank 0 [0, 1, 2] -> [20, 22, 24]",
        "rank 1 [10, 11, 12] -> -",
        "rank 2 [20, 21, 22] -> [20, 22, 24]",
    ]


def test_collectives_of_one_rank_say_that_it_is_alone():
    said, drawn = pictures(str(EXAMPLES / "collectives.py"))
    assert said[0].startswith("Alone")
    assert drawn['all_reduce(x, "sum")'] == ["rank 0 [0] -> [0]"]


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
