"""The examples that people look for print the same figures on one rank and on two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch_scripts import alone
from test_examples import DIGITS

from dream.launch.forks.foresight import IMPORTS

EXAMPLES = Path(__file__).parents[2] / "examples"
AGAIN = pytest.mark.exhaustive
RUN = ["-m", "dream", "run", "-n", "2"]
NOISE = re.compile(r"WARNING: All log messages before absl|[IWE]0000 |Traceback|Error:")


def output(script: str, *given: str, ranks: bool = False, backend: str = "tensorflow") -> str:
    """Return what an example prints on rank 0, without what frameworks write beside it."""
    imports = f"{'torch' if 'torch' in script else 'tensorflow,keras'},{DIGITS}"
    env = os.environ | {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": backend, IMPORTS: imports}
    line = [*(RUN if ranks else []), str(EXAMPLES / script), *given]
    if ranks:
        line = [sys.executable, *line]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=900, env=env, check=False
        )
    else:
        done = alone(line, imports, env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not NOISE.search(done.stdout), done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("script", "given"),
    [
        pytest.param("mnist_torch.py", [], id="mnist_torch", marks=pytest.mark.slow),
        pytest.param("mnist_keras.py", [], id="mnist_keras", marks=AGAIN),
        pytest.param("imagenet_torch.py", ["--double"], id="imagenet_torch", marks=AGAIN),
        pytest.param("imagenet_keras.py", ["--double"], id="imagenet_keras", marks=AGAIN),
        pytest.param("vae.py", [], id="vae", marks=AGAIN),
        pytest.param("tape_keras.py", [], id="tape_keras", marks=AGAIN),
        pytest.param("gan.py", [], id="gan", marks=AGAIN),
        pytest.param("language_model.py", ["--steps", "50"], id="language_model", marks=AGAIN),
    ],
)
def test_two_ranks_print_what_one_prints(script: str, given: list[str]) -> None:
    alone, two = output(script, *given), output(script, *given, ranks=True)
    assert re.search(r"loss .*\d\.\d{4}", alone)
    assert alone == two


@AGAIN
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_a_stopped_imagenet_goes_on_as_if_it_had_not(framework: str, tmp_path: Path) -> None:
    """All but the first epoch's checkpoint is taken away; two ranks go on where one stood."""
    line = [f"imagenet_{framework}.py", "--double", "--save", str(tmp_path)]
    whole = output(*line).splitlines()
    for later in sorted(tmp_path.glob("step-*"))[1:]:
        for file in later.iterdir():
            file.unlink()
        later.rmdir()
    (tmp_path / "latest").write_text(min(tmp_path.glob("step-*")).name)
    again = output(*line, ranks=True).splitlines()
    assert len(whole) == 3
    assert again == (whole[1:] if framework == "torch" else whole)  # Keras's history has all


@AGAIN
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_mnists_own_files_are_read(framework: str, tmp_path: Path) -> None:
    sizes = {"train-images-idx3": (16, 96 * 784), "train-labels-idx1": (8, 96),
             "t10k-images-idx3": (16, 32 * 784), "t10k-labels-idx1": (8, 32)}  # fmt: skip
    for name, (header, count) in sizes.items():
        content = bytes(header) + bytes(index * 7 % 10 for index in range(count))
        (tmp_path / f"{name}-ubyte").write_bytes(content)
    saved = tmp_path / ("cnn.pt" if framework == "torch" else "cnn.keras")
    given = ["--data", str(tmp_path), "--epochs", "1", "--save", str(saved)]
    assert output(f"mnist_{framework}.py", *given).count("epoch") == 1
    assert saved.stat().st_size > 10_000


@pytest.mark.slow
def test_a_ring_by_hand_adds_up_as_one_device_does() -> None:
    found = output("sgd_by_hand.py", ranks=True)
    apart = [float(figure) for figure in re.findall(r"at most (\S+e\S+)", found)]
    assert len(apart) == 2
    assert max(apart) < 1e-6
