"""A stream whose parts are read by one rank each: the same training on any number of ranks."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import parted_streams as parted
import pytest

import dream
from dream.data.parts import PARTS, PartedOrder, owned, share_of

pytestmark = pytest.mark.slow
SAMPLES = sum(9 + file % 4 for file in range(parted.FILES))
RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))


@cache
def found(ranks: int) -> list[dict[str, Any]]:
    return dream.launch(parted.all_loops, n=ranks, framework="torch", timeout=500)


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    pairs = zip(one["weights"], other["weights"], strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("name", parted.LOOPS)
@pytest.mark.parametrize("ranks", RANKS)
def test_any_number_of_ranks_learns_the_same(ranks: int, name: str) -> None:
    (alone,) = found(1)
    several = [rank[name] for rank in found(ranks)]
    assert max(_apart(rank, alone[name]) for rank in several) < 1e-6
    for epoch in range(2):
        seen = sorted(chain.from_iterable(rank["samples"][epoch] for rank in several))
        assert seen == sorted(alone[name]["samples"][epoch])
        assert len({*seen}) == len(seen) == SAMPLES
    assert {rank["evaluated"] for rank in several} == {SAMPLES}


def test_one_rank_learns_what_torch_does_with_its_batches() -> None:
    """Without dropout, whose draws come of a generator that the loader has drawn from too."""
    (alone,) = found(1)
    alone = alone["workers"]
    assert _apart({"weights": parted.train_plainly(alone["batches"])}, alone) < 1e-6


def test_a_rank_reads_its_own_parts_alone() -> None:
    looked_at = 2 * 7  # two samples of two parts, and what their buffers hold
    for rank in found(2):
        assert rank["itself"]["read"] <= len(rank["itself"]["samples"][0]) + looked_at


def test_another_number_of_ranks_goes_on_in_mid_epoch() -> None:
    (alone,) = found(1)
    kept = found(2)[1]["itself"]["kept"]
    (on,) = dream.launch(parted.train, 0, 1, kept, n=1, framework="torch", timeout=300)
    before = sum(len(x) for x, _ in alone["itself"]["batches"]) - SAMPLES - len(on["samples"][0])
    assert on["samples"][0] == alone["itself"]["samples"][1][before:]
    assert _apart(on, alone["itself"]) < 1e-6


def test_what_is_not_divided_is_refused() -> None:
    words = ("begin with the same", "different streams", "on rank 1 are empty", "batch_size=None")
    for said in dream.launch(parted.refused, n=2, framework="torch", timeout=300):
        assert all(word in line for word, line in zip(words, said, strict=True)), said


def test_shares_of_ones_own_have_no_place() -> None:
    with pytest.raises(dream.ConfigurationError, match=r"shares=\[3, 1\]"):
        dream.strategy("mirrored", input="sharded", shares=[3, 1])


@pytest.mark.parametrize(("workers", "behind"), [(1, 1), (3, 7)])
def test_an_order_gives_every_sample_once_and_says_when_a_workers_parts_end(
    workers: int, behind: int
) -> None:
    """As a loader does: it asks `behind` batches ahead."""
    left = [[(7 * place + worker) % 11 for place in range(PARTS)] for worker in range(workers)]
    whole = sum(map(sum, left))
    order = PartedOrder(20, workers, behind)
    asked: list[tuple[int, ...]] = []
    ended: list[int] = []
    given = batch = 0
    more = True
    while True:
        while more and len(asked) < behind:
            counts = order.ask()
            more = counts is not None
            asked += [] if counts is None else [counts]
        if not asked:
            break
        parts = left[batch % workers]
        got = [min(want, have) for want, have in zip(asked.pop(0), parts, strict=True)]
        parts[:] = [have - each for have, each in zip(parts, got, strict=True)]
        given += sum(got)
        ended += [batch % workers] if order.got(got) else []
        batch += 1
    assert given == whole
    assert {*ended} == {*range(workers)}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16])
def test_ranks_own_all_parts_and_runs_of_rows(ranks: int) -> None:
    counts = tuple(range(PARTS))
    assert [p for rank in range(ranks) for p in range(PARTS)[owned(rank, ranks)]] == [*range(PARTS)]
    shares = [share_of(counts, rank, ranks) for rank in range(ranks)]
    rows = [row for share in shares for row in range(sum(counts))[share.cut]]
    assert rows == [*range(sum(counts))]
    assert {share.largest for share in shares} == {max(share.count for share in shares)}
