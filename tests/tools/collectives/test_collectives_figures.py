"""The formulas, against numbers worked out by hand; and sizes as people write them."""

import pytest

from dream import ConfigurationError
from dream.files import sizes
from dream.tools.collectives.figures import SENT, Reading, TimingSettings, bus_bandwidth, rows


def settings(n=2, operations=("all_reduce",), algorithms=(), rounds=1, timeout=60):
    return TimingSettings(n, operations, (4096,), algorithms, rounds, timeout)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("all_reduce", 3000),
        ("all_gather", 1500),
        ("reduce_scatter", 1500),
        ("all_to_all", 1500),
        ("gather", 1500),
        ("scatter", 1500),
        ("broadcast", 2000),
        ("reduce", 2000),
    ],
)
def test_bus_bandwidth_of_1000_bytes_in_half_a_second_among_four(operation, expected):
    assert bus_bandwidth(operation, 1000, 0.5, 4) == expected


@pytest.mark.parametrize(
    ("algorithm", "ranks", "expected"),
    [
        ("naive", 4, [3600, 1200, 1200, 1200]),
        ("ring", 2, [1200] * 2),
        ("ring", 3, [1600] * 3),
        ("ring", 4, [1800] * 4),
        ("halving_doubling", 2, [1200] * 2),
        ("halving_doubling", 4, [1800] * 4),
        ("halving_doubling", 3, [2400, 1200, 1200]),
        ("halving_doubling", 6, [3000, 3000, 1800, 1800, 1200, 1200]),
    ],
)
def test_what_each_rank_sends_of_1200_bytes(algorithm, ranks, expected):
    assert list(SENT[algorithm](1200, ranks)) == expected


def test_each_transport_is_held_against_the_memcpy_of_its_own_case():
    made = rows(
        "torch",
        4,
        [
            Reading("all_reduce", 1000, "gloo", 5, [1.0, 0.5, 0.1]),
            Reading("all_reduce", 1000, "memcpy", 5, [0.1, 0.1, 0.2]),
            Reading("all_reduce", 2000, "ring", 5, [1.0], [3000] * 4),
            Reading("all_reduce", 2000, "memcpy", 5, [0.4]),
        ],
    )
    gloo, ring = made
    assert (gloo.contender, gloo.size, gloo.is_algorithm) == ("gloo", 1000, False)
    assert (gloo.seconds.low, gloo.seconds.median, gloo.seconds.high) == (0.3, 0.5, 0.75)
    assert (gloo.bus_bandwidth, gloo.memcpy) == (3000, pytest.approx(10_000))
    assert gloo.against_memcpy == pytest.approx(0.3)
    assert (ring.bus_bandwidth, ring.memcpy) == (3000, 5000)
    assert list(ring.sent) == list(ring.formula) == [3000] * 4


@pytest.mark.parametrize(
    ("text", "size"),
    [("4KB", 4096), ("200 kb", 204_800), ("1MB", 1 << 20), ("1.5GiB", 3 << 29), ("12", 12)],
)
def test_a_size_as_people_write_it(text, size):
    assert sizes.parse(text) == size


@pytest.mark.parametrize("text", ["", "0", "4 QB", "MB", "-1KB", "1e3"])
def test_what_is_no_size(text):
    with pytest.raises(ConfigurationError, match="This is no size"):
        sizes.parse(text)


@pytest.mark.parametrize(("size", "text"), [(12, "12 B"), (4104, "4 KB"), (3 << 19, "1.5 MB")])
def test_a_size_shown(size, text):
    assert sizes.show(size) == text


@pytest.mark.parametrize(("n", "size", "elements"), [(2, 4096, 1024), (3, 4096, 1026), (6, 4, 12)])
def test_every_rank_gets_as_many_elements_and_every_half(n, size, elements):
    assert settings(n).elements(size) == elements
