"""Random draws that are not made by what stands for torch's functions."""

from __future__ import annotations

import stray_draws
from torch.utils.data import DataLoader

import dream
from dream.adapters.pytorch.randomness.generators import Pardoned


def test_what_only_seeds_or_reads_whole_batches_is_no_unknown_draw() -> None:
    first, _ = dream.launch(stray_draws.said, n=2, framework="torch", timeout=300)
    unknown = {name: [each for each in lines if "dream does not know" in each]
               for name, lines in first.items()}  # fmt: skip
    assert len(unknown.pop("seeds_and_draws")) == 1
    assert unknown == {"seeds": [], "reads_whole": []}


def test_an_iterator_of_whole_batches_is_asked_for_its_length() -> None:
    """In a loop's first calls `len(iter(loader))` was a TypeError."""
    batches = Pardoned(iter(DataLoader(range(10), 4)))  # type: ignore[arg-type]
    assert len(batches) == 3
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert batches._num_yielded == 3
