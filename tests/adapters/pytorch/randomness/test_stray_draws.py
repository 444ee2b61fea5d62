"""Random draws that are not made by what stands for torch's functions."""

from __future__ import annotations

import stray_draws

import dream


def test_what_only_seeds_or_reads_whole_batches_is_no_unknown_draw() -> None:
    first, _ = dream.launch(stray_draws.said, n=2, framework="torch", timeout=300)
    unknown = {name: [each for each in lines if "dream does not know" in each]
               for name, lines in first.items()}  # fmt: skip
    assert len(unknown.pop("seeds_and_draws")) == 1
    assert unknown == {"seeds": [], "reads_whole": []}
