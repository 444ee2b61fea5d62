"""Who does what under TensorFlow's own parameter servers, and what is refused before they start."""

from __future__ import annotations

import pytest

import dream
from dream import ConfigurationError, Unsupported
from dream._topology import Cluster, Endpoint
from dream.parameter_server.coordinated import Tasks
from dream.strategies import spec

SPEC = spec.SPECS["parameter_server"]


def tasks(size: int, rank: int = 0, named: int | None = None, **given: object) -> Tasks:
    place = Cluster("dream run", rank=rank, world_size=size, servers=named)
    return Tasks.of(place, SPEC.resolve({"engine": "tensorflow", **given}))


def test_the_chief_comes_first_and_the_servers_last() -> None:
    found = [tasks(5, rank, servers=2) for rank in range(5)]
    assert [one.own for one in found] == [
        ("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1),
    ]  # fmt: skip
    assert str(found[0]) == "rank 0 is the chief, ranks 1, 2 work, ranks 3, 4 serve"
    listed = found[0].addresses([Endpoint("a", number) for number in range(1, 6)])
    assert listed == {"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4", "a:5"]}
    assert found[0].server_lost(1).rank == 4


@pytest.mark.parametrize(
    ("size", "given", "words"),
    [
        (1, {}, "A chief, 1 worker and 1 server are 3 ranks. Received: 1 rank from dream run"),
        (3, {"workers": 2}, "A chief, 2 workers and 1 server are 4 ranks. Received: 3 ranks"),
        (4, {"named": 2}, "servers=1, and 2 of 4 tasks are servers"),
    ],
)
def test_other_numbers_of_ranks_are_refused(size: int, given: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        tasks(size, **given)


@pytest.mark.parametrize("given", [{"staleness": 0}, {"snapshot_every": 5}])
def test_what_only_dreams_own_servers_know_is_refused(given: dict[str, int]) -> None:
    with pytest.raises(
        Unsupported, match="TensorFlow's parameter servers do not support this option"
    ):
        tasks(3, **given)


def test_torch_has_no_such_engine() -> None:
    with pytest.raises(Unsupported, match="'engine' has no meaning in this framework"):
        dream.strategy("parameter_server", engine="tensorflow", framework="torch")


def test_ranks_that_take_their_own_steps_hand_nothing_out() -> None:
    pytest.importorskip("torch")
    strategy = dream.strategy("single", framework="torch")
    with pytest.raises(Unsupported, match="Received: schedule under 'single'"):
        strategy.schedule(print)
