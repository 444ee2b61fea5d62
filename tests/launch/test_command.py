"""`dream run` and its sisters as a user types them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from launch_scripts import alive, dream, free_port, gone, start, wait_for, write

from dream import ConfigurationError
from dream.launch.command import job

SPEAK = "print(f'out {rank}')\nprint(f'err {rank}', file=sys.stderr)\n"
STAY = """
child = subprocess.Popen(['sleep', '600'])
with open(f'{sys.argv[0]}.{rank}.part', 'w') as file: file.write(f'{os.getpid()} {child.pid}')
os.rename(f'{sys.argv[0]}.{rank}.part', f'{sys.argv[0]}.{rank}')
time.sleep(600)
"""


def test_rank_0_on_screen_every_rank_in_the_logs(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    ran = dream("run", "-n", "2", "--log-dir", str(logs), write(tmp_path, SPEAK))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "out 0\n", "err 0\n")
    texts = [(logs / f"rank{rank}.log").read_text() for rank in range(2)]
    assert [sorted(text.splitlines()) for text in texts] == [["err 0", "out 0"], ["err 1", "out 1"]]


def test_every_rank_on_screen(tmp_path: Path) -> None:
    ran = dream("run", "--nproc-per-node=2", "--all-output", write(tmp_path, SPEAK))
    assert sorted(ran.stdout.splitlines()) == ["[0] out 0", "[1] out 1"]


def test_a_script_is_run_as_python_runs_it(tmp_path: Path) -> None:
    body = """
import inspect, json, pickle
class Thing: pass
twin = pickle.loads(pickle.dumps(Thing()))
print(json.dumps([__name__, __file__, sys.argv, sys.path[0], globals().get('__spec__'),
                  type(twin) is Thing, inspect.getsource(Thing)]))
"""
    script = write(tmp_path, body)
    arguments = ["--lr", "0.1", "-n", "5"]
    ran = dream("run", "-n", "1", script, *arguments)
    plain = subprocess.run(
        [sys.executable, script, *arguments],
        env={"RANK": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert json.loads(ran.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize("given", ["0.1\n", ""])
@pytest.mark.parametrize("by", ["pipe", "file"])
def test_what_is_on_standard_input_is_said_to_stay_there(
    tmp_path: Path, by: str, given: str
) -> None:
    script = write(tmp_path, "print(repr(sys.stdin.read()))")
    if by == "file":
        (tmp_path / "given").write_text(given)
        source = os.open(tmp_path / "given", os.O_RDONLY)
    else:
        source, end = os.pipe()
        os.write(end, given.encode())
        os.close(end)
    command = [sys.executable, "-m", "dream", "run", "-n", "2", script]
    with os.fdopen(source) as standard:
        ran = subprocess.run(
            command, stdin=standard, capture_output=True, text=True, timeout=300, check=False
        )
    assert (ran.returncode, ran.stdout) == (0, "''\n")
    assert ("is not forwarded to the ranks" in ran.stderr) is bool(given), ran.stderr


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text("import sys; print(__name__, sys.argv[1:])")
    ran = subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "1", "-m", "package.train", "--lr", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert ran.stdout == "__main__ ['--lr', '1']\n"


def test_the_last_message(tmp_path: Path) -> None:
    ran = dream("run", "-n", "2", write(tmp_path, "if rank: raise ValueError('mine')\n" + STAY))
    assert ran.returncode == 1
    message = ran.stderr[ran.stderr.index("dream run:") :]
    assert message.startswith("dream run: Rank 1 failed with exit code 1 after")
    assert message.endswith("  ValueError: mine\n")


def test_ports_and_token_are_fresh_at_every_start(tmp_path: Path) -> None:
    names = "'MASTER_PORT', 'DREAM_TOKEN', 'DREAM_RENDEZVOUS', 'TF_CONFIG'"
    script = write(tmp_path, f"print([os.environ[name] for name in ({names})])\n")
    first, second = (dream("run", "-n", "2", script).stdout for _ in range(2))
    told = [set(eval(text)) for text in (first, second)]
    assert len(told[0]) == 4
    assert not told[0] & told[1]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_nothing_is_left_once_the_launcher_is_ended(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    script = write(tmp_path, STAY)
    with start("run", "-n", "2", script) as launcher:
        told = [Path(f"{script}.{rank}") for rank in range(2)]
        wait_for(told)
        pids = [int(pid) for file in told for pid in file.read_text().split()]
        assert all(alive(pid) for pid in pids)
        launcher.send_signal(number)
        assert launcher.wait(120) == code
        assert gone(pids)
        if number != signal.SIGKILL:
            assert launcher.stderr is not None
            assert f"Stopped by {number.name}. Ended with it: ranks 0, 1." in launcher.stderr.read()


def test_a_ranks_own_children_go_with_it(tmp_path: Path) -> None:
    body = STAY.replace("time.sleep(600)", "")
    script = write(tmp_path, body)
    assert dream("run", "-n", "2", script).returncode == 0
    pids = [int(Path(f"{script}.{rank}").read_text().split()[1]) for rank in range(2)]
    assert gone(pids)


def test_the_strategy_reaches_the_script(tmp_path: Path) -> None:
    body = "import dream\nprint(dream.strategy('single', framework='torch'))\n"
    ran = dream("run", "-n", "2", "--strategy", "mirrored:bucket_mb=5", write(tmp_path, body))
    assert "Strategy('mirrored'" in ran.stdout
    assert ran.returncode == 0


def test_a_strategy_that_nothing_asks_for_is_said(tmp_path: Path) -> None:
    """The ranks are copies then, which looked like a training on all of them."""
    body = "from pathlib import Path\nprint('trained')\n"
    ran = dream("run", "-n", "2", "--strategy", "mirrored", write(tmp_path, body))
    assert (ran.returncode, ran.stdout) == (0, "trained\n")
    assert "script.py does not import dream" in ran.stderr
    assert "with dream.strategy()" in ran.stderr
    (tmp_path / "training.py").write_text("def train():\n    import dream\n")
    beside = write(tmp_path, "import training\nprint('trained')\n")
    assert dream("run", "-n", "2", "--strategy", "mirrored", beside).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2", "absent.py"], "No such script. Received: 'absent.py'"),
        (["-n", "0", __file__], "at least 1. Received: 0"),
        (["-n", "1", "--node-rank", "1", __file__], "--node-rank 1, --nnodes 1"),
        (["-n", "1", "--strategy", "mirored", __file__], "Did you mean 'mirrored'?"),
        (["-n", "1", "--framework", "jax", __file__], "Known: tensorflow, torch"),
        (["-n", "1", "--nnodes", "2", __file__], "export DREAM_TOKEN="),
        (["-n", "1", "--stratgy", "mirrored", __file__], "Did you mean --strategy?"),
        (["-n", "1", "--checkpoint", __file__, __file__], "(Not a directory)"),
        (["-n", "1", "--checkpoint", "/proc/kept", __file__], "nothing can be saved"),
        (["-n", "1", "lesson.ipynb"], "A notebook is no script"),
        ([__file__], "-n"),
    ],
)
def test_bad_input_is_told_in_a_line(arguments: list[str], words: str) -> None:
    ran = dream("run", *arguments)
    assert ran.returncode == 2
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        ran = dream("run", "-n", "1", "--master-port", str(port), __file__)
    assert ran.returncode == 2
    assert f"busy. Received: 127.0.0.1:{port}" in ran.stderr
    assert "--master-port" in ran.stderr


def test_two_hosts(tmp_path: Path) -> None:
    ends = on_two_hosts(tmp_path, "print(rank, os.environ['HOROVOD_CROSS_RANK'])\n")
    assert [code for code, _, _ in ends] == [0, 0]
    assert [out for _, out, _ in ends] == ["0 0\n", ""]


def test_a_failure_on_one_host_ends_the_other(tmp_path: Path) -> None:
    body = "if rank == 3: raise ValueError('mine')\ntime.sleep(600)\n"
    for code, _, err in on_two_hosts(tmp_path, body):
        assert code == 1
        assert "dream run: Rank 3 failed with exit code 1" in err
        assert err.endswith("ValueError: mine\n")


def test_a_host_that_never_comes_is_named() -> None:
    env = {"DREAM_TOKEN": "common-token", "DREAM_STARTUP_SECONDS": "1"}
    port = str(free_port())
    ran = dream("run", "-n", "1", "--nnodes", "2", "--master-port", port, __file__, env=env)
    assert ran.returncode == 1
    assert "the launchers of these nodes did not come within 1 s: 1." in ran.stderr


def on_two_hosts(folder: Path, body: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of two launchers, two ranks each, on loopback."""
    script, port = write(folder, body), str(free_port())
    arguments = ["run", "-n", "2", "--nnodes", "2", "--master-port", port, "--node-rank"]
    env = {"DREAM_TOKEN": "common-token"}
    hosts = [start(*arguments, str(node), script, env=env) for node in range(2)]
    try:
        texts = [host.communicate(timeout=300) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    return [(host.returncode, *text) for host, text in zip(hosts, texts, strict=True)]


def test_help_is_quick_to_import_and_loads_no_framework() -> None:
    code = (
        "import sys, dream.cli\n"
        "loaded = {'torch', 'tensorflow', 'keras', 'numpy', 'horovod', 'rich'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "dream.cli.main()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    for command in (
        "run",
        "verify",
        "compare",
        "collectives",
        "strategies",
        "env",
        "build-horovod",
    ):
        assert f"\n  {command} " in ran.stdout


def test_strategies() -> None:
    listed = dream("strategies")
    assert listed.returncode == 0
    for name in ("single", "mirrored", "horovod"):
        assert f"\n{name} " in listed.stdout
    one = dream("strategies", "mirrored")
    assert "bucket_mb" in one.stdout
    assert "find_unused" in one.stdout


def test_no_name_is_cut_where_80_columns_are_all() -> None:
    listed = dream("strategies").stdout.splitlines()
    assert any(line.startswith("multi_worker_mirrored ") for line in listed)
    assert max(map(len, listed)) <= 80


def test_an_unknown_strategy() -> None:
    ran = dream("strategies", "mirored")
    assert ran.returncode == 2
    assert "Did you mean 'mirrored'?" in ran.stderr


def test_a_platform_that_starts_one_process_a_host_says_which() -> None:
    platform = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "3",
                "PET_MASTER_ADDR": "first", "PET_MASTER_PORT": "1234"}  # fmt: skip
    with mock.patch.dict(os.environ, {**platform, "DREAM_TOKEN": "a-secret-of-the-job"}):
        told = job([__file__])
        assert (told.n, told.nnodes, told.node_rank) == (3, 2, 1)
        assert (told.master_addr, told.master_port) == ("first", 1234)
        other = job(["--master-port", "99", __file__])  # which says nothing of the hosts
        assert (other.nnodes, other.node_rank, other.master_port) == (2, 1, 99)
        given = job(["-n", "2", "--nnodes", "1", __file__])
        assert (given.n, given.nnodes, given.node_rank) == (2, 1, 0)
    unnamed = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "2"}
    with (
        mock.patch.dict(os.environ, unnamed),
        pytest.raises(ConfigurationError, match="first host's address"),
    ):
        job(["-n", "2", __file__])
