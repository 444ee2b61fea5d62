"""Every sample once, in one order, whatever it comes from; left in mid-epoch and gone on with by
another number of ranks."""

from __future__ import annotations

from functools import cache
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pytest
import torch_data

import dream

pytestmark = pytest.mark.slow
RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))
JOURNEYS = [
    (2, 3),
    pytest.param(3, 1, marks=pytest.mark.exhaustive),
    pytest.param(1, 2, marks=pytest.mark.exhaustive),
]
Taken = list[list[list[int]]]


def _launched(act: Any, ranks: int, *args: Any) -> list[dict[str, Any]]:
    return dream.launch(act, *args, n=ranks, framework="torch", timeout=500)


@cache
def alone() -> dict[str, Any]:
    return _launched(torch_data.whole, 1)[0]


@cache
def begun(ranks: int) -> list[dict[str, Any]]:
    return _launched(torch_data.begin, ranks)


@cache
def gone_on(ranks: int, before: int) -> list[dict[str, Any]]:
    kept = {kind: found["kept"] for kind, found in begun(before)[0].items()}
    return _launched(torch_data.go_on, ranks, kept)


@cache
def faults() -> list[dict[str, str]]:
    return _launched(torch_data.faults, 2)


def _whole(ranks: list[dict[str, Any]], kind: str) -> Taken:
    """The ranks' batches put together again: one sample of each in turn."""
    for rank in ranks:
        assert not isinstance(rank[kind], str), rank[kind]
    epochs = zip(*(rank[kind]["taken"] for rank in ranks), strict=True)
    return [[_in_turn(shares) for shares in zip(*batches, strict=True)] for batches in epochs]


def _in_turn(shares: Any) -> list[int]:
    return [i for turn in zip_longest(*shares) for i in turn if i is not None]


def _expected(kind: str) -> Taken:
    assert not isinstance(alone()[kind], str), alone()[kind]
    taken: Taken = alone()[kind]["taken"]
    return taken


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("kind", torch_data.LOADERS)
def test_the_order_is_that_of_one_device(kind: str, ranks: int) -> None:
    """Not "iterable copied to every rank", and not the same order in every epoch."""
    expected = _expected(kind)
    short = kind in torch_data.SHORT
    found = _whole(begun(ranks), kind)
    assert found[:-1] == expected[: len(found) - 1]
    assert found[-1] == expected[len(found) - 1][:2]
    everything = list(range(torch_data.SAMPLES))
    if "without" not in kind:
        assert all(sorted(chain(*epoch)) == everything for epoch in expected)
    for rank in begun(ranks):
        seen = sorted(chain(*rank[kind]["seen"]))
        assert short or "without" in kind or seen == everything
    shuffled = kind.startswith("mapped") or "shuffled" in kind or short
    assert (expected[0] == expected[1]) is not shuffled, "reshuffle without set_epoch"


@pytest.mark.parametrize(("before", "ranks"), JOURNEYS)
@pytest.mark.parametrize("kind", torch_data.LOADERS)
def test_another_number_of_ranks_goes_on(kind: str, before: int, ranks: int) -> None:
    first, rest = _whole(begun(before), kind), _whole(gone_on(ranks, before), kind)
    assert [*first[:-1], first[-1] + rest[0], rest[1]] == _expected(kind)[: len(first) + 1]
    if kind not in torch_data.SHORT:
        for rank in gone_on(ranks, before):
            difference = np.abs(rank[kind]["weights"] - alone()[kind]["weights"]).max()
            assert difference < 1e-6


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("stream_of_each_rank", "Desynchronized: The ranks read different streams"),
        ("stream_that_ends_early", "Desynchronized: The ranks read different streams"),
        ("single_samples", "Unsupported: Single samples cannot be divided"),
        ("other_data", "ConfigurationError: This state belongs to different data"),
        ("other_order", "ConfigurationError: The data is in a different order"),
        ("shorter_stream", "ConfigurationError: The data ended before"),
    ],
)
def test_what_would_lose_samples_is_refused(fault: str, said: str) -> None:
    for rank in faults():
        assert rank[fault].startswith(said), rank[fault]


@pytest.mark.parametrize("cut", [slice(0, None, 2), slice(1, None, 2)])
def test_a_part_of_a_batch_is_laid_out_as_a_batch(cut: slice) -> None:
    """Models call `view`, as those of transformers do of masked words."""
    import torch

    from dream.adapters.pytorch.data.reading.rows import cut_batch
    from dream.adapters.pytorch.data.reading.streams import sliced

    for kind in (dict, list):
        by_rows, by_columns = torch.zeros(5, 4, 2), torch.zeros(4, 5)
        whole = {"a": by_rows, "b": by_columns} if kind is dict else [by_rows, by_columns]
        part = cut_batch(whole, cut, 5)
        for one in part.values() if kind is dict else part:
            assert one.is_contiguous()
    assert all(x.is_contiguous() for x in sliced([torch.zeros(5, 3)], cut))


def test_a_loop_that_fails_on_an_empty_share_is_told_of_it() -> None:
    first, second = _launched(torch_data.fails_on_nothing, 2)
    assert first == []
    assert "no sample of the last batch" in str(second)


def test_a_loop_that_states_the_size_of_a_batch_is_told_of_its_own() -> None:
    for notes in _launched(torch_data.fails_on_a_size, 2):
        assert "has 4 of the batch's 8 samples" in str(notes)


def test_batches_as_long_as_they_are_many_are_cut_by_samples() -> None:
    """Time-first sequences of four steps at most, in a batch of four."""
    import torch
    from torch.utils.data import DataLoader

    from dream.adapters.pytorch.data.reading.fetch import Fetch, Fetched

    data = [torch.full((steps,), float(sample)) for sample, steps in enumerate((4, 2, 3, 4))]
    collate = torch.nn.utils.rnn.pad_sequence
    given = Fetched(data)
    given.cut = slice(1, 3)
    fetch = Fetch(DataLoader(data, batch_size=4, collate_fn=collate))
    fetch.collate = collate
    for _ in range(2):  # the first batch, and any other
        assert fetch(given).tolist() == [[1, 2], [1, 2], [0, 2], [0, 0]]
