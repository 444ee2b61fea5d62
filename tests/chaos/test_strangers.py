"""Hostile clients on every port that a job listens on: nobody comes in, and it trains on."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_hostile import ATTACKS, half_open, memory, ports
from chaos_jobs import KINDS, started

MOST_BYTES = 100 << 20
STALL = "60"
"""Seconds: who floods gloo's ports as the same user takes turns with its one thread."""
SAMPLE = "torch-gloo"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == SAMPLE else [pytest.mark.exhaustive])
        for kind in KINDS
    ],
)
@pytest.mark.slow
def test_nobody_comes_in(kind: str, tmp_path: Path, temporary: Path) -> None:
    witness = tmp_path / "somebody-came-in"
    with started(KINDS[kind], temporary, DREAM_STALL_SECONDS=STALL) as job:
        found = ports(job)
        assert found, "every job has a store"
        assert {address for address, _ in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        before = {pid: memory(pid) for pid in job.processes}
        numbers = sorted({port for _, port in found})
        for attack in ATTACKS:
            for port in numbers:
                attack(port, witness)
            job.wait_until_it_trains()
            assert not witness.exists(), attack
        for port in numbers:
            with half_open(port):
                grown = {pid: memory(pid) - was for pid, was in before.items()}
                assert max(grown.values()) < MOST_BYTES, grown
                job.wait_until_it_trains()
        assert job.launcher.poll() is None, job.errors
