"""The examples, as they stand: by themselves and under `dream run`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch_scripts import alone

from dream.launch.forks.foresight import IMPORTS

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCH = ("digits_torch.py", "")
KERAS = pytest.param("digits_keras.py", "tensorflow", marks=pytest.mark.slow)
AGAIN = pytest.mark.exhaustive
KERAS_TORCH = pytest.param("digits_keras.py", "torch", marks=AGAIN)
SPLIT = ("test accuracy", "this rank holds")
DIGITS = "sklearn.datasets,sklearn.model_selection"
RUN = ["-c", "from dream.cli import main; main()", "run", "-n", "2"]


def accuracy(backend, *line):
    """What the script prints at its end, and that it prints it once."""
    (found,) = re.findall(r"test accuracy ([\d.]+)", output(backend, *line))
    return float(found)


def output(backend, *line):
    """All that rank 0 prints."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that spin, where cores are shared
    env |= {"KERAS_BACKEND": backend} if backend else {}
    script = next(word for word in line if word.endswith(".py"))
    imports = imported(Path(script).read_text())
    if line[0] == script:
        done = alone(line, imports or f"torch,{DIGITS}", env)
    else:
        env |= {IMPORTS: imports} if imports else {}
        done = subprocess.run(
            [sys.executable, *line],
            capture_output=True, text=True, timeout=900, env=env, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for file in ("op_level_cost_estimator", "dtensor_device.cc"):  # TensorFlow's, in its log
        assert file not in done.stderr, done.stderr
    return done.stdout


def imported(script):
    """What the ranks of a script import: the same for all scripts of a framework, so that all
    have one parent. Empty where the script itself must tell."""
    if re.search(r"^import torch", script, re.MULTILINE):
        return f"torch,{DIGITS}"
    on_tensorflow = re.search(r"^import keras", script, re.MULTILINE)
    return f"tensorflow,keras,{DIGITS}" if on_tensorflow else ""


@pytest.mark.parametrize(("script", "backend"), [TORCH, KERAS, KERAS_TORCH])
def test_two_ranks_print_what_one_prints(script, backend):
    told = [accuracy(backend, *line, str(EXAMPLES / script)) for line in ([], RUN)]
    assert told[0] == told[1] > 0.9


def test_local_sgd_learns():
    assert accuracy("", *RUN, str(EXAMPLES / "local_sgd.py")) > 0.9


@AGAIN
def test_two_workers_by_tf_config():
    assert accuracy("", str(EXAMPLES / "tf_config.py")) > 0.9


@AGAIN
@pytest.mark.parametrize(("script", "backend"), [TORCH, KERAS])
def test_one_word_changes_the_strategy(script, backend, tmp_path):
    text = (EXAMPLES / script).read_text()
    assert text.count('strategy("mirrored")') == 1
    changed = tmp_path / script
    changed.write_text(text.replace('strategy("mirrored")', 'strategy("multi_worker_mirrored")'))
    assert accuracy(backend, *RUN, str(changed)) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "most"),
    [
        ("sharded.py", 0.51),
        pytest.param("tensor.py", 0.54, marks=AGAIN),
        pytest.param("tensor_digits.py", 0.51, marks=AGAIN),
        pytest.param("pipeline_digits.py", 0.7, marks=AGAIN),
    ],
)
def test_a_split_model_is_right_and_in_parts(script, most):
    found = output("", *RUN, str(EXAMPLES / script))
    ((right,), (held,)) = (re.findall(rf"{words} ([\d.]+)", found) for words in SPLIT)
    assert float(right) > 0.9
    assert 0.3 <= float(held) < most


@AGAIN
@pytest.mark.parametrize(
    "script", ["sharded.py", "tensor.py", "tensor_digits.py", "pipeline_digits.py"]
)
def test_a_split_model_alone(script):
    assert accuracy("", str(EXAMPLES / script)) > 0.9


@AGAIN
@pytest.mark.parametrize(("script", "most"), [("hybrid.py", 0.7), ("hybrid_transformer.py", 0.54)])
def test_a_mesh_of_four_ranks(script, most):
    found = output("", *RUN[:-1], "4", str(EXAMPLES / script))
    ((right,), (held,)) = (re.findall(rf"{words} ([\d.]+)", found) for words in SPLIT)
    assert float(right) > 0.9
    assert 0.3 <= float(held) < most


OVER = [*RUN, "--strategy"]
SPLIT_KERAS = [
    pytest.param([*RUN], "sharded_keras.py", 0.9, id="sharded"),
    pytest.param(
        [*OVER, "model_parallel:split=pipeline,devices=1"], "pipeline_keras.py", 0.6, id="pipeline"
    ),
    pytest.param(
        [*OVER, "model_parallel:split=tensor,devices=1"], "tensor_keras.py", 0.6, id="tensor"
    ),
    pytest.param([], "pipeline_keras.py", 0.6, id="pipeline_alone"),
    pytest.param([], "tensor_keras.py", 0.6, id="tensor_alone"),
]


@AGAIN
@pytest.mark.parametrize(("line", "script", "least"), SPLIT_KERAS)
def test_a_split_keras_model_learns(line, script, least):
    assert accuracy("tensorflow", *line, str(EXAMPLES / script)) > least


@AGAIN
@pytest.mark.parametrize(
    "line",
    [
        pytest.param([], id="alone"),
        pytest.param([*RUN, "--framework", "torch,tensorflow"], id="mixed", marks=pytest.mark.ring),
    ],
)
def test_one_ring_for_two_frameworks(line):
    found = output("", *line, str(EXAMPLES / "mixed_ring.py"))
    ((rank, accuracy, apart),) = re.findall(
        r"rank (\d) \(torch\): test accuracy ([\d.]+), weights at most (\S+) from", found
    )
    assert rank == "0"
    assert float(accuracy) > 0.9
    assert float(apart) <= 1e-5


@AGAIN
def test_a_hasty_port_is_told_from_a_true_one():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "port_check.py")],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The padding differs: old ((1, 1), (1, 1)), new ((0, 1), (0, 1))." in done.stdout
    assert "momentum: old 0.9, new 0.99." in done.stdout
    assert "hasty: not equal" in done.stdout
    assert "true: equal" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", ["data_parallel.py", pytest.param("layers.py", marks=AGAIN)])
def test_many_devices_in_one_process(script):
    assert accuracy("", str(EXAMPLES / script)) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "held"),
    [pytest.param([], 116082, id="alone", marks=AGAIN), pytest.param(RUN, 58560, id="two")],
)
def test_a_transformer_in_stages(line, held):
    found = output("", *line, str(EXAMPLES / "pipeline.py"))
    ((parameters, right),) = re.findall(r"holds (\d+) of 116082 .* letters right ([\d.]+)", found)
    assert int(parameters) == held
    assert float(right) > 0.7


@AGAIN
@pytest.mark.parametrize("script", ["async_torch.py", "async_keras.py"])
def test_workers_that_do_not_wait_learn_as_well(script):
    """How much each of them did hangs on the machine."""
    found = output("tensorflow", "-m", "dream", "run", "-n", "3", str(EXAMPLES / script))
    ((right, updates, told),) = re.findall(
        r"accuracy ([\d.]+).*\n(?:\[0\] )?(\d+) updates.*by worker {(.*?)}", found
    )
    assert float(right) > 0.9
    assert int(updates) == sum(map(int, re.findall(r": (\d+)", told)))


@AGAIN
def test_a_chief_hands_steps_out():
    line = ("-m", "dream", "run", "-n", "4", str(EXAMPLES / "parameter_server_tensorflow.py"))
    found = output("tensorflow", *line)
    assert "220 updates by 2 workers" in found
    assert float(re.findall(r"test accuracy ([\d.]+)", found)[0]) > 0.9


@AGAIN
def test_knobs_change_no_number():
    """Micro-batches, clipping and a schedule: one process and two ranks end alike."""
    found = [output("", *line, str(EXAMPLES / "knobs.py")) for line in ([], RUN)]
    alone, two = (re.findall(r"updates (\d+), accuracy ([\d.]+)", text) for text in found)
    assert alone == two
    assert alone[0][0] == "290"
    assert float(alone[0][1]) > 0.9


@AGAIN
@pytest.mark.parametrize(("script", "backend"), [("torch", ""), ("keras", "tensorflow")])
def test_a_training_survives(script, backend):
    """Without a rank, left and gone on with by others: the weights are those of one go."""
    found = output(backend, str(EXAMPLES / f"survive_{script}.py"))
    assert re.findall(r"exit code (\d+)", found) == ["85", "0"]
    assert float(re.findall(r"the weights differ by (\S+)", found)[0]) < 1e-6


@AGAIN
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_picture_of_each_collective(framework):
    line = [*RUN[:-1], "3", str(EXAMPLES / "collectives.py"), "--framework", framework]
    found = re.sub(r"^\[0\] ", "", output("", *line), flags=re.MULTILINE)
    pictures = {part.splitlines()[0]: part.splitlines()[2:] for part in found.split("\n\n")}
    assert found.startswith(f"3 ranks on {framework}, over ")
    assert len(pictures) == 15
    summed = pictures['reduce_scatter(x, "sum")']
    assert [line.split("->")[1].strip() for line in summed] == ["[30]", "[33]", "[36]"]
    passed = pictures["send(x, to=...)"]
    assert [line.split("->")[1].strip() for line in passed] == [
        "[20, 21, 22]", "[0, 1, 2]", "[10, 11, 12]",
    ]  # fmt: skip


def test_a_rank_alone_gets_back_what_it_gave():
    found = output("", str(EXAMPLES / "collectives.py"))
    assert "Alone, a rank gets back what it gave" in found
    assert found.count("rank 0   [0]") > 8


@AGAIN
def test_gpt2_is_planned_for():
    """`xl` is the same model with more of each, which takes a minute of a core, or more."""
    line = ["-m", "dream", "plan", str(EXAMPLES / "plan_gpt2.py") + ":small", "--devices", "4"]
    done = subprocess.run(
        [sys.executable, *line, "--hardware", "a100-pcie"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1,057,536 parameters" in done.stdout
    assert re.search(r"^sharded, zero 3 +15\.3 MB +yes", done.stdout, re.MULTILINE)
    assert re.search(r"^Take \w+", done.stdout, re.MULTILINE)
