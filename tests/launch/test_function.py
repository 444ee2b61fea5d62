"""`dream.launch`: results, failures and what travels."""

from __future__ import annotations

import atexit
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dream


def place(factor: int, plus: int = 0) -> int:
    return int(os.environ["RANK"]) * factor + plus


KEPT: list[Any] = []


def leave(folder: Path) -> None:
    KEPT.append((folder / "open").open("w"))
    KEPT[0].write("written")
    atexit.register((folder / "registered").write_text, "written")
    threading.Timer(0.2, (folder / "thread").write_text, ("written",)).start()


def fail_on(rank: int) -> None:
    if int(os.environ["RANK"]) == rank:
        raise ValueError("mine")
    time.sleep(600)


def refused() -> None:
    raise dream.ConfigurationError("Received: nothing.")


def environment(name: str) -> str | None:
    return os.environ.get(name)


def test_results_come_in_rank_order() -> None:
    assert dream.launch(place, 10, n=3, plus=1) == [1, 11, 21]


def test_a_rank_ends_what_its_function_left(tmp_path: Path) -> None:
    """What is registered, threads, and files that nobody closed."""
    dream.launch(leave, tmp_path, n=1)
    for name in ("open", "registered", "thread"):
        assert (tmp_path / name).read_text() == "written", name


def test_what_ranks_print_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert dream.launch(print, "hello", n=2) == [None, None]
    assert capsys.readouterr().out == "hello\n"


def test_a_failure_carries_rank_and_traceback() -> None:
    with pytest.raises(dream.WorkerFailed, match="Rank 1 failed") as error:
        dream.launch(fail_on, 1)
    assert error.value.rank == 1
    assert "in fail_on" in error.value.traceback
    assert error.value.traceback.endswith("ValueError: mine\n")


def test_an_error_of_dreams_own_is_shown() -> None:
    with pytest.raises(dream.WorkerFailed, match=r"ConfigurationError: Received: nothing"):
        dream.launch(refused, n=1)


def test_a_time_limit() -> None:
    with pytest.raises(dream.WorkerFailed, match=r"time limit of 0.5 s passed.*ranks 0, 1"):
        dream.launch(time.sleep, 600, timeout=0.5)


def test_environment_framework_and_strategy_reach_the_ranks() -> None:
    assert dream.launch(environment, "MINE", n=1, env={"MINE": "yes"}) == ["yes"]
    given = {"framework": "torch", "strategy": "mirrored", "env": {"DREAM_WARM": "0"}}
    assert dream.launch(environment, "DREAM_FRAMEWORK", **given) == ["torch", "torch"]
    assert dream.launch(environment, "DREAM_STRATEGY", **given) == ["mirrored", "mirrored"]


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("place", (), "calls a function. Received: 'place'"),
        (place, (threading.Lock(),), "cannot be sent"),
    ],
)
def test_what_cannot_be_called(function: object, arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(dream.ConfigurationError, match=words):
        dream.launch(function, *arguments)  # type: ignore[arg-type]


def test_no_ranks() -> None:
    with pytest.raises(dream.ConfigurationError, match="at least 1"):
        dream.launch(place, 1, n=0)


def test_functions_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(
        "import dream, os\n"
        "class Mine:\n    def __init__(self, rank): self.rank = rank\n"
        "def function(): return Mine(os.environ['RANK'])\n"
        "print([mine.rank for mine in dream.launch(function)], dream.launch(lambda: 5, n=1))\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ran.stdout, ran.returncode) == ("['0', '1'] [5]\n", 0), ran.stderr


def test_functions_of_a_script_without_cloudpickle(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(
        "import sys\nsys.modules['cloudpickle'] = None\n"
        "import dream\ndef function(): return 1\ndream.launch(function)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert "NotInstalled" in ran.stderr
    assert "pip install cloudpickle" in ran.stderr


def test_from_a_thread() -> None:
    results: list[list[int]] = []
    thread = threading.Thread(target=lambda: results.append(dream.launch(place, 1)))
    thread.start()
    thread.join(300)
    assert results == [[0, 1]]


def test_in_one_of_several_processes_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with caplog.at_level("WARNING", "dream"):
        assert dream.launch(place, 1, n=1) == [0]
    assert (
        "one of several processes of another launcher: each call starts a separate job"
        in caplog.text
    )
    assert "OMPI_COMM_WORLD_SIZE=4 of Open MPI" in caplog.text


def test_a_rank_that_the_system_does_not_start() -> None:
    with pytest.raises(
        dream.WorkerFailed, match=r"rank 0. Received: Argument list too long"
    ) as one:
        dream.launch(place, 1, env={"MINE": "x" * (1 << 20)})
    assert one.value.rank == 0


def _mode_of_its_folder() -> int:
    return stat.S_IMODE(Path(sys.argv[2]).parent.stat().st_mode)


def test_where_the_parent_ignores_ended_children() -> None:
    """As some daemons do, whose children inherit it: nobody could wait for a rank then."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert dream.launch(place, 1, n=2) == [0, 1]
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_what_travels_is_in_a_folder_of_its_users_own() -> None:
    """Pickles go through it."""
    assert dream.launch(_mode_of_its_folder, n=1) == [0o700]
