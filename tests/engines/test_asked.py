"""What `dream run --hosts` and `--on` are given, and what goes on to a host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch_scripts import DREAM, dream, wait_for

from dream import DreamError
from dream.launch.engines.ray import launch_function


@pytest.mark.parametrize(
    ("hosts", "options", "shown"),
    [
        ("a:4,b:4", (), "run -n 4 --nnodes 2 --node-rank 1 --master-addr a "),
        ("me@a,b", ("-n", "3"), "run -n 3 --nnodes 2 --node-rank 1 --master-addr a "),
        ("[fd00::1]:2,[fd00::2]:2", (), "run -n 2 --nnodes 2 --node-rank 1 --master-addr fd00::1 "),
        ("a:1,b:1", ("--master-addr", "10.0.0.9"), "--node-rank 1 --master-addr 10.0.0.9 "),
        ("a:1,b:1", ("--strategy", "sharded", "--all-output"), "--strategy sharded --all-output"),
    ],
)
def test_what_a_host_is_to_run(hosts: str, options: tuple[str, ...], shown: str) -> None:
    ran = dream("run", "--hosts", hosts, *options, "--dry-run", __file__, "--lr", "0.1")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 2
    assert shown in lines[1]
    assert lines[1].endswith(f"{__file__} --lr 0.1")


def test_a_file_of_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=2\n\nb:2  # the new one\nc 2 max_slots=4\n")
    ran = dream("run", "--hosts", str(file), "--dry-run", __file__)
    assert [line.count("run -n 2 --nnodes 3") for line in ran.stdout.splitlines()] == [1] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--hosts", "a:4,b:2"), "same number of ranks"),
        (("--hosts", "a:4,b:4", "-n", "2"), "same number of ranks"),
        (("--hosts", "a:1,a:1"), "names a host twice"),
        (("--hosts=-oProxyCommand=x:1",), "is neither a list of hosts nor a file"),
        (("--hosts", "localhost:1,b:1"), "must be able to reach the first"),
        (("--hosts", "a:0,b:0"), "at least 1"),
        (("--hosts", "a:1,b:1", "--nnodes", "3"), "must agree"),
        (("--on", "ssh", "-n", "1"), "no --hosts"),
        (("--on", "slurm"), "Pass -n N"),
        (("--on", "mpi", "-n", "2", "--log-dir", "x"), "--log-dir"),
        (("-n", "1", "--gpus", "1"), "Received: --gpus, no --on"),
        (("--on", "ray", "-n", "2", "--gpus", "3"), "Each rank needs a GPU of its own"),
        (("--on", "slurm", "-n", "2", "--gpus", "1"), "Each rank needs a GPU of its own"),
        (("--on", "ray", "-n", "2", "--framework", "jax"), "--framework"),
        (("-n", "1", "--signal-before", "7"), "Received: --signal-before, no --on"),
        (("--on", "slurm", "-n", "1", "--signal-before", "7"), "no --checkpoint"),
        (("--hosts", ",".join(["a:2"] * 100)), "names a host twice"),
        (("--on", "mpi", "-n", "1", "--time", "1"), "Received: --time, --on mpi"),
        (("--on", "ray", "-n", "1", "--port-range", "1-2"), "Received: --port-range, --on ray"),
        (("--hosts", "a:1,b:1", "--image", "x"), "Received: --image, --on ssh"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], words: str) -> None:
    dry = ("--dry-run",) if {"--on", "--hosts"} & {*options} else ()
    ran = dream("run", *options, *dry, __file__)
    assert ran.returncode == 2
    assert words in ran.stderr


def test_ranks_of_slurm_may_save_until_its_time_is_over() -> None:
    def grace(*options: str) -> list[str]:
        ran = dream("run", "--on", "slurm", "-n", "1", *options, "--dry-run", __file__)
        return re.findall(r"--grace (\S+)", ran.stdout)

    assert grace("--checkpoint", "x") == ["100"]
    assert grace("--checkpoint", "x", "--nnodes", "2", "--signal-before", "600") == ["580"]
    assert grace("--checkpoint", "x", "--signal-before", "40") == ["30"]
    assert grace("--checkpoint", "x", "--grace", "5") == ["5.0"]
    assert grace() == []


def test_options_for_sbatch_are_quoted_as_it_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'my "own" #1'
    folder.mkdir()
    monkeypatch.chdir(folder)
    ran = dream("run", "--on", "slurm", "-n", "1", "--engine-option=--comment=it's",
                "--engine-option=--partition gpu", "--dry-run", __file__)  # fmt: skip
    lines = ran.stdout.splitlines()
    assert f'#SBATCH --output="{tmp_path}/my \\"own\\" \\#1/test-asked-%j.out"' in lines
    assert '#SBATCH --comment="it\\\'s"' in lines
    assert "#SBATCH --partition gpu" in lines
    assert f"cd '{folder}' || exit 2" in lines


def test_a_batch_script_is_one_that_a_shell_takes(tmp_path: Path) -> None:
    script = tmp_path / "it's mine.py"
    script.write_text("")
    ran = dream("run", "--on", "slurm", "--nnodes", "2", "-n", "4", "--time", "1:00:00",
                "--checkpoint", "a b", "--dry-run", str(script), "$HOME", "'")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    read = subprocess.run(["bash", "-n"], input=ran.stdout, text=True, check=False)
    assert read.returncode == 0
    for option in ("--nodes=2", "--cpus-per-task=4", "--time=1:00:00", "--signal=TERM@120"):
        assert f"#SBATCH {option}\n" in ran.stdout
    assert "scontrol requeue" in ran.stdout
    # what srun's shell hands on: the arguments as they were typed
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text('#!/bin/bash\nexec "${@:4}"\n')
    (programs / "scontrol").write_text("#!/bin/bash\necho first\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    shell = ran.stdout.replace(f"exec {sys.executable} -m dream", 'printf "%s\\n"')
    assert shell != ran.stdout
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "15003",
               "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "x"}  # fmt: skip
    told = subprocess.run(["bash"], input=shell, env=environ, capture_output=True, text=True,
                          check=False)  # fmt: skip
    words = told.stdout.splitlines()
    assert words[-3:] == [str(script), "$HOME", "'"], told
    place = ["--node-rank", "1", "--master-addr", "first", "--master-port", "15003"]
    assert words[5:11] == place


@pytest.fixture
def mpirun(tmp_path: Path) -> dict[str, str]:
    """A PATH on which mpirun says that it is Open MPI's, and what else it is given."""
    program = tmp_path / "mpirun"
    program.write_text(
        '#!/bin/bash\n[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1" && exit\n'
        "trap 'echo told; exit 5' TERM\n"
        f'echo "$$ $*" > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/began\n'
        "while true; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("options", "address", "port"),
    [
        (("--nnodes", "2", "--master-addr", "h", "--master-port", "3000"), "h", "3000"),
        (("--nnodes", "2", "--master-addr", "h"), "h", ""),
        (("--master-addr", "h"), "h", ""),
        (("--master-port", "3000"), "127.0.0.1", "3000"),
        (("--hosts", "a,b", "--master-port", "3000"), "a", "3000"),
        (("--hosts", "a,b", "--master-addr", "h"), "h", ""),
    ],
)
def test_every_rank_of_mpirun_is_told_where_the_first_is(
    options: tuple[str, ...], address: str, port: str, mpirun: dict[str, str]
) -> None:
    ran = dream("run", "--on", "mpi", "-n", "1", *options, "--dry-run", __file__, env=mpirun)
    assert f"MASTER_ADDR={address} MASTER_PORT={port}" in ran.stdout, ran
    assert "-x MASTER_ADDR -x MASTER_PORT " in ran.stdout


def test_where_the_first_is_comes_from_here_too(mpirun: dict[str, str]) -> None:
    here = {"MASTER_ADDR": "h", "MASTER_PORT": "3000"}
    command = ("run", "--on", "mpi", "-n", "1", "--nnodes", "2", "--dry-run")
    assert "-x MASTER_ADDR -x MASTER_PORT " in dream(*command, __file__, env=mpirun | here).stdout
    refused = dream(*command, "--master-port", "3000", __file__, env=mpirun)
    assert refused.returncode == 2
    assert "Pass --master-addr or --hosts too" in refused.stderr


def test_a_signal_reaches_mpirun(mpirun: dict[str, str], tmp_path: Path) -> None:
    command = (*DREAM, "run", "--on", "mpi", "-n", "1", __file__)
    environ = {**os.environ, **mpirun}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as started:
        wait_for([tmp_path / "began"])
        started.terminate()
        told, _ = started.communicate(timeout=60)
    assert (told, started.returncode) == ("told\n", 5)
    assert (tmp_path / "began").read_text().split()[0] == str(started.pid)


@pytest.mark.parametrize("framework", ["torch,tensorflow", "jax"])
def test_a_function_on_an_engine_has_one_framework(framework: str) -> None:
    with pytest.raises(DreamError, match=framework):
        launch_function(b"", {}, n=2, nnodes=1, framework=framework, strategy=None)
