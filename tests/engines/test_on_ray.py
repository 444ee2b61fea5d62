"""`dream run --on ray` and `dream.launch(on="ray")`: a cluster of two raylets on this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from launch_scripts import HEAD
from netns import DREAM

import dream

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


def run(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = (*DREAM, "run", "--on", "ray", "--address", address, *words)
    return subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


def test_a_failure_comes_home_and_a_lost_actor_is_started_again(
    raylets: str, tmp_path: Path
) -> None:
    """Rank 1 kills the actor that holds it, at the first start; then it raises an error."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + (
        "import signal\n"
        "print('began', flush=True)\n"
        "if rank == 1 and not os.path.exists(sys.argv[0] + '.once'):\n"
        "    mark('once'); os.kill(os.getppid(), signal.SIGKILL)\n"
        "if rank == 1: raise ValueError('this one')\n"
        "while True: time.sleep(0.05)\n"
    ))  # fmt: skip
    ran = run(raylets, "-n", "2", "--max-restarts", "1", str(script))
    assert ran.returncode == 1
    assert "Lost with its host or actor: rank 1" in ran.stderr
    assert "Starting again, 1 of 1" in ran.stderr
    assert "Rank 1 failed with exit code 1" in ran.stderr
    assert "ValueError: this one" in ran.stderr
    assert ran.stdout.count("began\n") == 2  # rank 0's; Ray has a word of its own between


def test_no_cluster_is_said(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    ran = run("127.0.0.1:1", "-n", "1", str(script))
    assert ran.returncode == 2
    assert "No Ray cluster answers" in ran.stderr


def test_a_function_is_launched(raylets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setenv("RAY_ADDRESS", raylets)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    try:
        assert dream.launch(os.getenv, "RANK", n=2, on="ray") == ["0", "1"]
        with pytest.raises(dream.WorkerFailed, match=r"Rank . failed with exit code 1"):
            dream.launch(int, "no number", n=2, on="ray")
    finally:
        ray.shutdown()


def test_another_engine_is_refused() -> None:
    with pytest.raises(dream.ConfigurationError, match="on='slurm'"):
        dream.launch(os.getpid, on="slurm")
