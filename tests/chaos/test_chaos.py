"""Faults at random moments, under every kind of job: it ends, the right rank is named, and nothing
is left. `pytest -m exhaustive tests/chaos` fires three hundred and prints the table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chaos_faults import Verdict, drawn, fire, table

FAULTS = 300
AT_ONCE = 2
SAMPLE = (
    ("torch-shared_memory", "raise"),
    ("torch-gloo", "STOP"),
    ("torch-pipeline", "leave"),
    ("torch-sharded", "launcher"),
    ("torch-horovod", "KILL"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), SAMPLE)
def test_a_fault_ends_the_job_and_is_named(kind: str, fault: str, temporary: Path) -> None:
    verdict = fire(kind, fault, 0, temporary)
    assert verdict.good, f"{verdict}\n{verdict.errors}"


@pytest.mark.exhaustive
def test_all_of_them_end_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(lambda cell: fire(*cell), drawn(FAULTS)))
    with capsys.disabled():
        print(f"\n{table(verdicts)}")
        print("\n".join(str(verdict) for verdict in verdicts if not _as_promised(verdict)))
    bad = [verdict for verdict in verdicts if not verdict.good]
    assert not bad, "\n".join(f"{verdict}\n{verdict.errors[-2000:]}" for verdict in bad)


def _as_promised(verdict: Verdict) -> bool:
    return verdict.good and verdict.in_time
