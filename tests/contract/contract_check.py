"""How figures are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from contract_job import Job

Arrays = Mapping[str, Any]
TOLERANCE = 1e-6


def difference(ours: Arrays, theirs: Arrays) -> float:
    """The largest difference between arrays of the same names; infinite where one is not finite
    or the names or shapes differ."""
    if list(ours) != list(theirs):
        return float("inf")
    worst = 0.0
    for name, array in ours.items():
        mine, other = np.asarray(array, np.float64), np.asarray(theirs[name], np.float64)
        if mine.shape != other.shape or not np.isfinite(mine).all():
            return float("inf")
        worst = max(worst, float(np.abs(mine - other).max(initial=0.0)))
    return worst


def of_each_copy(job: Job, ranks: Sequence[Any]) -> Sequence[Any]:
    """One rank's of each copy of the model: those that hold parts of one share its samples."""
    return ranks[:: max(1, job.cell.processes // job.cell.replicas)]


def by_name(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    return {name: difference({name: ours[name]}, {name: theirs[name]}) for name in ours}


def assert_identical(ranks: Sequence[Arrays], what: str = "parameters") -> None:
    """The same bits on every rank."""
    for rank, arrays in enumerate(ranks[1:], start=1):
        assert list(arrays) == list(ranks[0]), f"{what}: rank {rank} has other names"
        for name, array in arrays.items():
            assert np.array_equal(array, ranks[0][name]), (
                f"{what}: {name} differs between rank 0 and rank {rank} by "
                f"{difference({name: array}, {name: ranks[0][name]}):.1e}"
            )


def assert_close(ours: Arrays, theirs: Arrays, tolerance: float = TOLERANCE) -> None:
    found = difference(ours, theirs)
    assert found <= tolerance, f"{found:.1e} from one device: {by_name(ours, theirs)}"


def assert_equals_one_device(
    job: Job, oracle: Job, case: str, *, key: str = "parameters", mode: str = "single"
) -> None:
    """The case's parameters: the same bits on all ranks, and those of one device to 1e-6."""
    ranks = [figures[key] for figures in job.figures(case)]
    assert_identical(ranks, f"{case} {key}")
    (one,) = oracle.figures(case, mode)
    assert_close(ranks[0], one[key])


def assert_raised(refusal: Mapping[str, Any], kind: str, *words: str) -> None:
    """An error of a kind, whose message has the words and what was received."""
    assert kind in refusal["types"], f"expected {kind}: {refusal}"
    for word in words:
        assert word in refusal["message"], f"{word!r} is not in: {refusal['message']}"


def dealt(ranks: Sequence[Sequence[int]]) -> list[int]:
    """A global batch put together again from its shares, which were dealt in turn."""
    whole: list[int] = []
    for turn in range(max(map(len, ranks), default=0)):
        whole += [share[turn] for share in ranks if turn < len(share)]
    return whole


def global_order(ranks: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Every rank's batches of an epoch as global batches."""
    assert len({len(batches) for batches in ranks}) == 1, "the ranks saw other numbers of batches"
    return [dealt(shares) for shares in zip(*ranks, strict=True)]
