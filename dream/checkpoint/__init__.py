"""Checkpoints: a folder a step, which any strategy and number of ranks goes on from.

`content` is what one holds, `storage` how it lies on the disk. `saves` takes what a rank is
allotted, `background` writes it; `commits` are those in memory.
`training` are those of one training, `untouched` those of one whose script loads nothing.
`checkpointer` is what a framework brings, `job` has all ranks find and load one; `layers` and
`ported` take a model from one framework to the other.
"""

from __future__ import annotations

from dream.checkpoint.content import CheckpointContent, OptimizerState
from dream.checkpoint.storage.array_files import check_arrays
from dream.checkpoint.storage.folder import CheckpointFolder
from dream.checkpoint.storage.words import from_json, to_json

__all__ = [
    "CheckpointContent",
    "CheckpointFolder",
    "OptimizerState",
    "check_arrays",
    "from_json",
    "to_json",
]
