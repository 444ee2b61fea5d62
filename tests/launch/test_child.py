"""What a rank runs: the user's script as Python itself would run it; and under `--strategy`
TensorFlow, set up as soon as it is imported where the rank trains in it. (What is then set up is
the adapter's to test.)"""

from __future__ import annotations

import subprocess
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from launch_scripts import alone, dream, write

from dream import ConfigurationError, Unsupported
from dream.launch import child
from dream.launch.command import refuse_nested

THREAD = "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()\n"
FINE = [
    "sys.exit(0)",
    THREAD,
    "sys.exit()",
    "sys.exit(256)",
    "import atexit\natexit.register(int, 'x')",
]
FAILING = [
    "sys.exit(3)",
    "sys.exit('no data')",
    "os._exit(5)",
    "raise ValueError('mine')",
    "raise KeyboardInterrupt",
    "sys.exit(-1)",
    "sys.exit(2.5)",
    "sys.excepthook = lambda *_: print('mine', file=sys.stderr)\nraise ValueError",
    f"{THREAD}sys.exit(4)",
]
SEVERAL = [
    statement if index < few else pytest.param(statement, marks=pytest.mark.exhaustive)
    for statements, few in ((FINE, 2), (FAILING, 5))
    for index, statement in enumerate(statements)
]


@pytest.mark.parametrize(("module", "shown"), [("dream.waits", False), ("requests.api", True)])
def test_a_victims_words_end_with_its_scripts_line(module: str, *, shown: bool) -> None:
    waits: dict[str, Any] = {"__name__": module}
    exec("def wait(): raise ConnectionResetError('peer') from KeyError('its own')", waits)
    with pytest.raises(ConnectionResetError) as caught:
        waits["wait"]()
    child._shorten(caught.value)
    words = "".join(traceback.format_exception(caught.value))
    assert 'waits["wait"]()' in words
    assert words.endswith("ConnectionResetError: peer\n")
    assert ("in wait" in words, "its own" in words) == (shown, shown)


@pytest.mark.parametrize(
    ("raised", "all_said"),
    [("Unsupported('this')", True), ("Unsupported('this') from KeyError()", False),
     ("ValueError('mine')", False)],
)  # fmt: skip
def test_only_dreams_own_words_say_all(raised: str, *, all_said: bool) -> None:
    with pytest.raises((Unsupported, ValueError)) as caught:
        exec(f"raise {raised}", {"Unsupported": Unsupported})
    assert child._says_all(caught.value) == all_said


@pytest.mark.parametrize("statement", SEVERAL)
def test_exit_code_and_words(tmp_path: Path, statement: str) -> None:
    script = write(tmp_path, f"print('hello')\n{statement}\n")
    plain = subprocess.run(
        [sys.executable, script],
        env={"RANK": "0", "PYTHONUNBUFFERED": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    ran = dream("run", "-n", "1", script)
    code = plain.returncode if plain.returncode >= 0 else 128 - plain.returncode
    assert (ran.returncode, ran.stdout) == (code, plain.stdout)
    words, name, message = ran.stderr.partition("dream run: ")
    assert words == plain.stderr
    assert bool(message) == (statement in FAILING)
    if name:
        assert message.startswith(f"Rank 0 failed with exit code {code} after ")


def test_a_threads_error_is_shown_whosever_it_is(tmp_path: Path) -> None:
    """Python shows it on stderr, which of rank 1 nobody sees."""
    body = """
import threading
def work(): raise ValueError('mine')
thread = threading.Thread(target=work)
thread.start(); thread.join()
"""
    ran = dream("run", "-n", "2", write(tmp_path, f"if rank == 1:{body}".replace("\n", "\n    ")))
    assert ran.returncode == 0
    assert ran.stderr.startswith(
        "dream run: A thread of rank 1 died with an error; the rank continues"
    )
    assert ran.stderr.endswith("  ValueError: mine\n")
    assert ran.stderr.count("mine") == 2  # its line, and its error


TORCHRUN = {"WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1"}
SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
DREAM_RANK = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "DREAM_RENDEZVOUS": "h:1"}
HOROVODRUN = {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "1"}
JAX_JOB = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
PALS_JOB = {"PALS_LOCAL_SIZE": "2", "PALS_RANKID": "1"}
CLUSTER = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "%s", "index": 0}}'
TASK, EVALUATOR = {"TF_CONFIG": CLUSTER % "worker"}, {"TF_CONFIG": CLUSTER % "evaluator"}
ALONE = {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'}
ONE_A_HOST = {"WORLD_SIZE": "2", "RANK": "1"}


@pytest.mark.parametrize(
    ("environ", "nnodes"),
    [(TORCHRUN, 1), (TORCHRUN, 2), (SRUN, 1), (MPIRUN, 1), (MPIRUN, 2), (DREAM_RANK, 1),
     (DREAM_RANK, 2), (ONE_A_HOST, 1), (HOROVODRUN, 1), (HOROVODRUN, 2), (JAX_JOB, 1),
     (PALS_JOB, 1)],
)  # fmt: skip
def test_in_another_launchers_rank_it_is_refused(environ: dict[str, str], nnodes: int) -> None:
    (name, value), *_ = environ.items()
    with pytest.raises(ConfigurationError, match=rf"train its own copy. Received: {name}={value}"):
        refuse_nested(environ, nnodes)


@pytest.mark.parametrize(("environ", "tasks"), [(TASK, 2), (EVALUATOR, 3)])
def test_in_a_task_of_several_it_is_refused(environ: dict[str, str], tasks: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"copy. Received: TF_CONFIG, .* {tasks} tasks"):
        refuse_nested(environ, 1)


@pytest.mark.parametrize(
    ("environ", "nnodes"),
    [(TASK, 2), (ALONE, 1), (JAX_JOB, 2), (ONE_A_HOST, 2), (SRUN, 2),
     ({}, 1), ({"WORLD_SIZE": "1", "RANK": "0"}, 1),
     ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, 1), ({"WORLD_SIZE": ""}, 1)],
)  # fmt: skip
def test_where_no_copies_would_be_trained_it_is_not(environ: dict[str, str], nnodes: int) -> None:
    refuse_nested(environ, nnodes)


def test_a_script_that_starts_itself_is_told(tmp_path: Path) -> None:
    body = """
end = subprocess.run([sys.executable, '-m', 'dream', 'run', '-n', '1', sys.argv[0]],
                     stderr=subprocess.PIPE, text=True)
print(end.returncode, end.stderr)
"""
    ran = dream("run", "-n", "2", write(tmp_path, body))
    assert ran.stdout.startswith("2 dream: Another launcher started `dream run`")
    assert "Received: WORLD_SIZE=2, RANK=0, LOCAL_RANK=0 (of a rank of `dream run`)" in ran.stdout


WATCH = """
import sys
from dream.strategies import registry
registry.load = lambda place: lambda *given: print("set up", *given)
from dream.launch.joined.early import watch_tensorflow as watch
watch()
"""

NEEDS_BOTH = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("tensorflow")), reason="torch and tensorflow are needed"
)


def told(imports: str, **env: str) -> str:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    with TemporaryDirectory() as folder:
        (script := Path(folder) / "script.py").write_text(WATCH + imports)
        modules = imports.removeprefix("import ").replace(", ", ",")
        given = {**quiet, "DREAM_STRATEGY": "mirrored:reduction=grpc", **env}
        ran = alone([str(script)], modules, given)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
@NEEDS_BOTH
@pytest.mark.parametrize(
    ("imports", "env"),
    [
        ("import keras", {"KERAS_BACKEND": "tensorflow"}),
        ("import torch, tensorflow", {"DREAM_FRAMEWORK": "tensorflow"}),
    ],
)
def test_set_up(imports: str, env: dict[str, str]) -> None:
    assert told(imports, **env) == "set up mirrored {'reduction': 'grpc'}\n"


@pytest.mark.slow
@NEEDS_BOTH
def test_not_set_up_where_it_may_be_torch() -> None:
    assert told("import torch, tensorflow") == ""


def test_a_script_without_tensorflow() -> None:
    assert told("import json") == ""
