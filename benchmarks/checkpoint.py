"""Saving and reading a checkpoint of 400 MB at 2 ranks, beside torch's distributed checkpoints,
Accelerate, a copy in memory, and the disk.

    python benchmarks/checkpoint.py [--rounds 7] [--megabytes 400] [--ranks 2] [--folder DIR]

Stall: how long training stands still. Whole: until everything is on the disk. Steps: a hundred
with two checkpoints among them, against a hundred without.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _measure import arguments, from_ranks, ratios, write_json

TABLES = {
    "stall": "training stands still",
    "whole": "until it is on the disk",
    "read": "read and set, from the disk's cache",
    "steps": "100 steps",
}


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--megabytes", type=int, default=400, help="of model and optimizer")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=told.folder) as folder:
        found = from_ranks(
            told.ranks,
            Path(__file__).with_name("_checkpoint_ranks.py"),
            *map(str, (told.rounds, told.megabytes, folder)),
        )
    for key, what in TABLES.items():
        unit = "ms" if key == "stall" else "s"
        print(f"\n{what}\n\n{ratios(found[key], unit=unit, markdown=told.markdown)}")
    write_json(told.json, found)


if __name__ == "__main__":
    main()
