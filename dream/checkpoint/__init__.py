"""Checkpoints: a folder a step, which any strategy and number of ranks goes on from.

`folder` keeps them, `array_files` are its files of arrays, `content` is what one holds, `words`
writes plain values as JSON. `saves` takes what a rank is allotted, `background` writes it.
`checkpointer` is what a framework brings, `job` has all ranks find and load one; `layers` and
`ported` take a model from one framework to the other.
"""

from __future__ import annotations

from dream.checkpoint.array_files import check_arrays
from dream.checkpoint.content import CheckpointContent, OptimizerState
from dream.checkpoint.folder import CheckpointFolder
from dream.checkpoint.words import from_json, to_json

__all__ = [
    "CheckpointContent",
    "CheckpointFolder",
    "OptimizerState",
    "check_arrays",
    "from_json",
    "to_json",
]
