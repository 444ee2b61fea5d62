"""Ranks of `dream run` that are forked see what fresh ones see; where they would not, they begin
again in an interpreter of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a fork server needs Linux"),
]
PROBE = Path(__file__).with_name("warm_probe.py")
OF_THE_JOB = ("DREAM_", "HOROVOD_", "TF_CONFIG", "MASTER_PORT")


def run(script: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """On two ranks, with a server of its own: DREAM_FORK_SERVER is the tests'."""
    command = [sys.executable, "-m", "dream", "run", "-n", "2", "--verbose", "--all-output"]
    given = {**os.environ, "DREAM_FORK_SERVER": "", **environ}
    ended = subprocess.run(
        [*command, str(script), *arguments], env=given, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "Exception ignored" not in ended.stderr  # as an interpreter that ends in another order
    return ended


def seen(folder: Path, lines: str, **environ: str) -> list[dict[str, Any]]:
    """What rank 0 is like before and after these lines."""
    out = folder / "seen.json"
    run(PROBE, lines, str(out), **environ)
    told: list[dict[str, Any]] = json.loads(out.read_text())
    for when in told:
        when["environ"] = {n: t for n, t in when["environ"].items() if not n.startswith(OF_THE_JOB)}
    return told


@pytest.mark.parametrize(
    "framework",
    ["torch", *(pytest.param(n, marks=pytest.mark.exhaustive) for n in ("tensorflow", "keras"))],
)
def test_a_forked_rank_sees_what_a_fresh_one_sees(framework: str, tmp_path: Path) -> None:
    """Before its first import, and after: all that the probe looks at."""
    lines = f"import {framework}"
    forked = seen(tmp_path, lines, DREAM_FORK_IMPORTS=framework)
    fresh = seen(tmp_path, lines, DREAM_WARM="0")
    for before, after in zip(fresh, forked, strict=True):
        assert before == after
    assert forked[0] != forked[1]


def write(folder: Path, text: str) -> Path:
    script = folder / "train.py"
    script.write_text(text)
    return script


READS = "import os; heard = os.environ.get('TO_HEAR')"
HEARS = """
import os
{}
import tensorflow
print(tensorflow.heard)
"""


@pytest.mark.parametrize(
    ("line", "again"),
    [
        ("os.environ['TO_HEAR'] = 'this'", False),
        ("os.environ.update(TO_HEAR='this')", True),
    ],
)
def test_a_variable_that_a_script_sets_counts(line: str, again: bool, tmp_path: Path) -> None:
    """By a constant, which is known before; or in another way."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "tensorflow.py").write_text(READS)  # quicker than the real one
    script = write(tmp_path, HEARS.format(line))
    ended = run(script, PYTHONPATH=str(tmp_path / "path"), DREAM_FORK_IMPORTS="tensorflow")
    assert sorted(ended.stdout.splitlines()) == ["[0] this", "[1] this"]
    assert ended.stderr.count("is forked from") == 2
    told = "TO_HEAR was set before `import tensorflow`: rank 1 begins again, in an interpreter"
    assert (told in ended.stderr) == again


def test_scikit_learn_costs_no_second_start(tmp_path: Path) -> None:
    """It sets variables, and imports parts of NumPy that torch alone does not."""
    lines = "import torch\nfrom sklearn.datasets import load_digits\nimport dream\n"
    ended = run(write(tmp_path, f"{lines}print(len(load_digits().data))"))
    assert sorted(ended.stdout.splitlines()) == ["[0] 1797", "[1] 1797"]
    assert ended.stderr.count("is forked from") == 2
    assert "begins again" not in ended.stderr


def test_what_scikit_learn_sets_as_it_is_imported_counts_for_nothing(tmp_path: Path) -> None:
    """It is for libraries that are loaded after it: the block may be open by then."""
    lines = "import os; os.environ.update(KMP_DUPLICATE_LIB_OK='True', KMP_INIT_AT_FORK='FALSE')\n"
    ended = run(write(tmp_path, lines + "import rich"), DREAM_FORK_IMPORTS="rich")
    assert ended.stderr.count("is forked from") == 2
    assert "begins again" not in ended.stderr


LATE = """
import os, sys, torch, dream
with dream.strategy("mirrored") as strategy:
    open(f"{sys.argv[1]}/begun{strategy.topology.rank}", "a").write("x")
    os.environ.update(TO_HEAR="this")
    import rich
    strategy.communicator.barrier()
print("through")
"""


def test_a_rank_that_has_joined_the_others_does_not_begin_again(tmp_path: Path) -> None:
    """They would wait for it in vain. gymnasium and its like set variables as they are imported."""
    ended = run(write(tmp_path, LATE), str(tmp_path), DREAM_FORK_IMPORTS="torch,rich")
    assert sorted(ended.stdout.splitlines()) == ["[0] through", "[1] through"]
    assert [file.read_text() for file in sorted(tmp_path.glob("begun*"))] == ["x", "x"]
    assert "TO_HEAR was set before `import rich`, in a block that is open" in ended.stderr


def test_a_file_of_the_name_of_what_frameworks_import_counts(tmp_path: Path) -> None:
    """Python's own among them."""
    (tmp_path / "queue.py").write_text("mine = True\nQueue = SimpleQueue = Empty = Full = int\n")
    ended = run(write(tmp_path, "import queue; print(queue.mine)"), DREAM_FORK_IMPORTS="queue,rich")
    assert sorted(ended.stdout.splitlines()) == ["[0] True", "[1] True"]
    assert "has the name of a module that frameworks import" in ended.stderr


def test_what_torch_imports_late_ends_in_order(tmp_path: Path) -> None:
    """A module of it, which DDP brings, holds a generator of optree's, which comes after it."""
    pytest.importorskip("optree")
    lines = "import dream, torch\nfrom torch.utils.data import DataLoader\n"
    lines += "with dream.strategy('mirrored'):\n  layer = torch.nn.Linear(4, 1)\n"
    lines += "  for x in DataLoader(torch.ones(8, 4), batch_size=4): layer(x).sum().backward()\n"
    run(write(tmp_path, lines))


def test_a_path_that_a_script_adds_counts(tmp_path: Path) -> None:
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "rich.py").write_text("mine = True\n")
    lines = f"import sys; sys.path.insert(0, {str(tmp_path / 'added')!r})\n"
    ended = run(write(tmp_path, lines + "import rich; print(rich.mine)"), DREAM_FORK_IMPORTS="rich")
    assert sorted(ended.stdout.splitlines()) == ["[0] True", "[1] True"]
    assert "added/rich is found before what was imported" in ended.stderr


DRAWS = """
import random, uuid, multiprocessing
import {}
print(random.random(), uuid.uuid4(), multiprocessing.current_process().authkey.hex(), *[{}])
"""


@pytest.mark.parametrize(
    ("framework", "draw"),
    [
        ("torch, numpy", "torch.rand(1).item(), numpy.random.rand()"),
        *(
            pytest.param(*each, marks=pytest.mark.exhaustive)
            for each in (
                ("tensorflow", "float(tensorflow.random.uniform([])), tensorflow.random.Generator."
                 "from_non_deterministic_state().state.numpy().tolist()[0]"),
                ("keras", "float(keras.random.uniform([])), float(keras.layers.Dense(1)"
                 "(keras.ops.ones([1, 1]))[0, 0])"),
            )
        ),
    ],
)  # fmt: skip
def test_no_two_ranks_draw_alike(framework: str, draw: str, tmp_path: Path) -> None:
    ended = run(write(tmp_path, DRAWS.format(framework, draw)))
    numbers = [word for line in ended.stdout.splitlines() for word in line.split()[1:]]
    assert len({*numbers}) == len(numbers) == 10


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    script = write(tmp_path, "import sys, rich; print(__spec__.name, sys.argv[1:], sys.path[0])")
    command = [sys.executable, "-m", "dream", "run", "-n", "2", "--verbose"]
    given = {**os.environ, "DREAM_FORK_SERVER": "", "DREAM_FORK_IMPORTS": "rich"}
    told = [
        subprocess.run(
            [*command, *how, "-m", script.stem, "-x"], env=given, cwd=tmp_path,
            capture_output=True, text=True, timeout=300, check=True,
        )
        for how in ([], ["--no-warm"])
    ]  # fmt: skip
    assert told[0].stdout == told[1].stdout == f"train ['-x'] {tmp_path}\n"
    assert "Rank 0 is forked" in told[0].stderr
    assert "Every rank starts a fresh interpreter (slower): --no-warm." in told[1].stderr


@pytest.mark.parametrize(
    ("options", "environ", "why"),
    [
        (["-n", "1"], {}, "one rank has nobody to share an import with"),
        (["-n", "2"], {"CUDA_VISIBLE_DEVICES": "0"}, "this host has GPUs"),
        (["-n", "2"], {"DREAM_WARM": "0"}, "DREAM_WARM=0"),
        (["-n", "2"], {}, "no framework is named"),
    ],
)
def test_why_ranks_start_fresh_is_told(
    options: list[str], environ: dict[str, str], why: str, tmp_path: Path
) -> None:
    text = "pass" if why.startswith("no framework") else "if False:\n    import torch"
    ended = subprocess.run(
        [sys.executable, "-m", "dream", "run", *options, "--verbose", str(write(tmp_path, text))],
        env={**os.environ, "DREAM_FORK_SERVER": "", **environ}, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    assert f"Every rank starts a fresh interpreter (slower): {why}" in ended.stderr
