"""Without a connection: leases, clocks, which server holds what, roles."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dream import ConfigurationError
from dream.parameter_server.coordinator import Clocks, Coordinator
from dream.parameter_server.job import Roles
from dream.parameter_server.leases import Epoch, EpochLeases
from dream.parameter_server.optimizer import place
from dream.parameter_server.staleness import Staleness

KEY = (0, 0)


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    workers=st.integers(1, 4),
    bound=st.sampled_from([None, 0, 1, 3]),
    moves=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["work", "die", "come"]))),
)
def test_every_sample_is_done_whoever_dies(
    samples: int, batch_size: int, workers: int, bound: int | None, moves: list[tuple[int, str]]
) -> None:
    """Each lease is done by one worker in the end, and those of the dead are dealt again."""
    epoch = Epoch(samples, batch_size, drop_last=False)
    desk = Coordinator(workers, bound)
    held: dict[int, list[int]] = {worker: [] for worker in range(workers)}
    for worker in held:
        desk.join(worker)
    desk.begin(0, KEY, epoch)
    done: list[int] = []

    def work(worker: int) -> None:
        if worker in desk.present and held[worker]:
            done.append(held[worker].pop())
            desk.settle(worker, KEY, [done[-1]], gradient=False)
        elif worker in desk.present and desk.may_start(worker, KEY, 1):
            lease = desk.next_lease(worker, KEY)
            held[worker] += [] if lease is None else [lease]

    for number, move in moves:
        worker = number % workers
        if move == "die":
            desk.leave(worker, lost=True)
            held[worker].clear()
        elif move == "come" and worker not in desk.present:
            desk.join(worker)
        else:
            work(worker)
    desk.join(0) if 0 not in desk.present else None
    for _ in range(4 * samples * workers):
        for worker in sorted(desk.present):
            work(worker)
    assert desk.finished(KEY)
    leases = EpochLeases(epoch, desk.split)
    assert sorted(Counter(done).values()) == [1] * len(done)
    assert sum(leases.samples(lease) for lease in done) == samples
    if bound:
        assert desk.staleness().lead <= bound


def test_an_epochs_last_batch_is_short_or_dropped() -> None:
    assert [Epoch(10, 4, drop_last=False).size(batch) for batch in range(3)] == [4, 4, 2]
    assert Epoch(10, 4, drop_last=True).batches == 2


def test_a_short_batch_has_no_more_parts_than_samples() -> None:
    leases = EpochLeases(Epoch(9, 4, drop_last=False), split=3)
    assert [leases.parts(batch) for batch in range(3)] == [3, 3, 1]
    assert [leases.samples(lease) for lease in (0, 1, 2)] == [2, 1, 1]


def test_one_who_comes_late_starts_level_with_the_slowest() -> None:
    clocks = Clocks(bound=2)
    clocks.join(0)
    clocks.tick(0, 5)
    clocks.join(1)
    assert clocks.may_start(1)
    assert clocks.may_start(0, 2)
    assert not clocks.may_start(0, 3)
    clocks.leave(1)
    assert clocks.may_start(0, 2)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 5))
def test_shards_are_whole_and_even(sizes: list[int], servers: int) -> None:
    if len(sizes) < servers:
        with pytest.raises(ConfigurationError, match=f"at most servers={len(sizes)}"):
            place(sizes, servers)
        return
    placed = place(sizes, servers)
    assert sorted(index for part in placed for index in part) == list(range(len(sizes)))
    assert all(placed)
    loads = [sum(sizes[index] for index in part) for part in placed]
    assert max(loads) - min(loads) <= max(sizes)


def test_roles_are_told_and_a_wrong_number_of_ranks_named() -> None:
    assert str(Roles.fit(4, None, 1)) == "ranks 0, 1, 2 work, rank 3 serves"
    assert [Roles(2, 2).serves(rank) for rank in range(4)] == [False, False, True, True]
    with pytest.raises(ConfigurationError, match=r"2 workers and 1 server are 3 ranks.*-n 3"):
        Roles.fit(2, 2, 1)
    with pytest.raises(ConfigurationError, match=r"Received: 1 rank\..*-n 2"):
        Roles.fit(1, None, 1)


def test_figures_survive_json() -> None:
    told = Staleness({0: 3, 2: 1}, {0: 2, 1: 2}, lead=1, repeated=4, lost=1, joined=0)
    assert Staleness.of_json(told.to_json()) == told
    assert (told.mean, told.max, told.updates) == (0.5, 2, 4)
