"""`sharded` with prefetch=: numbers of one device, and FSDP2's modules gather so far ahead."""

from __future__ import annotations

from typing import Any

import prefetch_cases
import pytest

import dream
from dream import ConfigurationError, Unsupported


@pytest.fixture(scope="module")
def ranks() -> Any:
    return dream.launch(prefetch_cases.everything, n=2, framework="torch", timeout=600)


@pytest.mark.slow
def test_numbers_are_those_of_one_device(ranks: Any) -> None:
    for rank in ranks:
        assert max(rank["exact"].values()) <= 1e-6, rank["exact"]


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_so_many_parts_are_gathered_ahead_in_the_order_that_they_ran(
    ranks: Any, ahead: int
) -> None:
    """The whole, then three blocks: a part's own name, and those it gathers. In backward a part
    that gathers none ahead names itself, which is there."""
    forward, backward = (ranks[0]["given"][ahead][way] for way in ("forward", "backward"))
    order = [parts[0] for parts in forward]
    assert len(set(order)) == 4 == len(forward) == len(backward)
    assert forward == [[u, *order[at + 1 :][:ahead]] for at, u in enumerate(order)]
    returned = [order[0], *order[:0:-1]]
    expected = {u: [u, *(returned[at + 1 :][:ahead] or [u])] for at, u in enumerate(returned)}
    assert backward == [expected[unit] for unit in order]


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("mirrored", {"prefetch": 1}, Unsupported, "taken by: sharded"),
        ("sharded", {"zero": 1, "prefetch": 1}, ConfigurationError, "zero=1, prefetch=1"),
        ("sharded", {"prefetch": -1}, ConfigurationError, "too small"),
        ("sharded", {"framework": "tensorflow", "prefetch": 1}, Unsupported, "works in: torch"),
    ],
)
def test_it_is_refused_where_it_has_no_meaning(
    name: str, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        dream.strategy(name, **options)
