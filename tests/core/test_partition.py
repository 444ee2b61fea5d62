"""Every sample once, in an order that the number of replicas does not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dream import ConfigurationError
from dream.data.partition import (
    Division,
    check_batch_size,
    epoch_order,
    global_batches,
    micro_shares,
)

sizes = st.integers(0, 200)
parts = st.integers(1, 7)
batch_sizes = st.integers(1, 64)


@given(sizes, batch_sizes, parts, st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_every_sample_once(
    samples: int, batch_size: int, ranks: int, seed: int, epoch: int, shuffle: bool
) -> None:
    order = epoch_order(samples, seed=seed, epoch=epoch, shuffle=shuffle)
    dealt = [
        batch[Division(ranks).share(len(batch), rank).cut]
        for batch in global_batches(order, batch_size)
        for rank in range(ranks)
    ]
    assert sorted(np.concatenate([*dealt, order[:0]]).tolist()) == list(range(samples))


@given(sizes, batch_sizes)
def test_drop_last_leaves_whole_batches(samples: int, batch_size: int) -> None:
    order = epoch_order(samples, seed=0, epoch=0, shuffle=False)
    batches = list(global_batches(order, batch_size, drop_last=True))
    assert [len(batch) for batch in batches] == [batch_size] * (samples // batch_size)


@given(st.integers(1, 200), parts)
def test_weights_average_to_the_global_mean(total: int, ranks: int) -> None:
    shares = [Division(ranks).share(total, rank) for rank in range(ranks)]
    assert sum(share.count for share in shares) == total
    assert sum(share.weight for share in shares) / ranks == pytest.approx(1.0)
    assert max(share.count for share in shares) - min(share.count for share in shares) <= 1


@given(st.integers(1, 200), st.lists(st.integers(1, 20), min_size=2, max_size=6))
def test_runs_of_a_batch_are_in_proportion(total: int, weights: list[int]) -> None:
    division = Division.asked(len(weights), weights)
    shares = [division.share(total, rank) for rank in range(len(weights))]
    places = [place for share in shares for place in range(total)[share.cut]]
    assert sorted(places) == list(range(total))
    assert {share.largest for share in shares} == {max(share.count for share in shares)}
    if division.weights:
        for weight, share in zip(weights, shares, strict=True):
            assert abs(share.count - total * weight / sum(weights)) < 1


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=6), st.integers(6, 300))
def test_speeds_leave_nobody_without_a_sample(speeds: list[float], batch_size: int) -> None:
    division = Division.by_speed(speeds, batch_size)
    counts = [len(division.rows(batch_size, part)) for part in range(len(speeds))]
    assert min(counts) >= 1
    assert sum(counts) == batch_size
    spare, whole = batch_size - len(speeds), sum(speeds)
    for speed, count in zip(speeds, counts, strict=True):
        assert abs(count - 1 - spare * speed / whole) <= 1.001


@given(st.integers(1, 200), parts, st.integers(1, 9))
def test_micro_batches_are_the_share_in_runs(total: int, ranks: int, most: int) -> None:
    """As many on every rank, and none that no rank has a sample of."""
    shares = [Division(ranks).share(total, rank) for rank in range(ranks)]
    runs = [micro_shares(share, most) for share in shares]
    (micros,) = {len(run) for run in runs}
    assert 1 <= micros <= most
    for share, run in zip(shares, runs, strict=True):
        assert sum(part.count for part in run) == share.count
        assert sum(part.weight for part in run) == pytest.approx(share.weight)
        assert max(p.count for p in run) - min(p.count for p in run) <= 1
        assert [part.last for part in run] == [False] * (micros - 1) + [True]
    assert all(any(run[micro].count for run in runs) for micro in range(micros))


def test_even_shares_weigh_exactly_one() -> None:
    assert [Division(4).share(64, rank).weight for rank in range(4)] == [1.0] * 4


def test_no_sample_weighs_nothing() -> None:
    assert Division(2).share(1, 1).weight == 0.0


def test_epochs_and_seeds_differ() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return epoch_order(50, seed=seed, epoch=epoch, shuffle=True).tolist()

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(0, 1) != order(1, 0)


def test_a_batch_smaller_than_the_replicas_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"batch_size=2, replicas=3.*batch_size=3 or more"):
        check_batch_size(2, 3)
    check_batch_size(3, 3)
