"""A mismatch is an error on every rank, which names ranks and calls; then all goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks_job
from cells import over
from conftest import Job

MISMATCHES = {
    "operation": ("all_reduce(op='sum') of float32 (2, 3)", "broadcast(root=0) of float32 (2, 3)"),
    "op": ("all_reduce(op='sum')", "all_reduce(op='max')"),
    "shape": ("float32 (2, 3)", "float32 (2, 2)"),
    "dtype": ("of float32 (2, 3)", "of float64 (2, 3)"),
    "root": ("broadcast(root=0)", "broadcast(root=1)"),
    "count": ("of float32 (2, 3)", "of 2 tensors: float32 (2, 3), float32 (2, 3)"),
    "rest": ("all_gather() of float32 (*, 3)", "all_gather() of float32 (*, 2)"),
    "algorithm": ("algorithm='naive'", "algorithm='ring'"),
}


@pytest.mark.parametrize("what", MISMATCHES)
@over()
def test_named_on_every_rank(
    job: Job, framework: str, size: int, reduction: str, what: str
) -> None:
    found = job(framework, size).gave("differing", reduction, what)
    most, odd = MISMATCHES[what]
    for said, seconds, after in found:
        assert said.startswith("Desynchronized"), said
        assert f"rank{'s' if size > 2 else ''} {', '.join(map(str, range(size - 1)))}: " in said
        assert f"rank {size - 1}: " in said
        assert most in said, said
        assert odd in said, said
        assert seconds < 2.0
        assert after == [[float(size)] * 3] * 2
    assert len({said for said, _, _ in found}) == 1


@over()
def test_another_order(job: Job, framework: str, size: int, reduction: str) -> None:
    for said, after in job(framework, size).gave("out_of_order", reduction):
        assert all(text.startswith("Desynchronized") for text in said), said
        assert after == [float(size)]


def test_who_never_comes_is_named(tmp_path: Path) -> None:
    with ranks_job.ranks("torch", 3, tmp_path / "log", DREAM_STALL_SECONDS="1.5") as three:
        found = three.gave("one_stays_away", "gloo", 4.0)
        for said, seconds in found[:2]:
            assert said.startswith("Desynchronized: Rank 2 did not come to all_reduce"), said
            assert "rank 2 has made no call yet" in said
            assert "DREAM_STALL_SECONDS" in said
            assert 1.4 < seconds < 3.0
        late, seconds = found[2]
        assert late.startswith("Desynchronized"), late
        assert "ranks 0, 1: gave up waiting" in late
        assert seconds < 2.0


@pytest.mark.parametrize(("framework", "reduction"), [("torch", "gloo"), ("torch", "horovod")])
def test_who_is_gone_is_named(tmp_path: Path, framework: str, reduction: str) -> None:
    with (
        pytest.raises(AssertionError, match="rank 1"),
        ranks_job.ranks(framework, 2, tmp_path / "log") as two,
    ):
        two.outcomes("one_dies", reduction)
    assert "SIGKILL" in (tmp_path / "log").read_text()
