"""The pairs of cells that test_checkpoint_cells.py went through, as a table: FILE."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path


def family(cell: str) -> str:
    """Return `torch`, `keras-tensorflow` or `keras-torch`."""
    return "torch" if cell.startswith("torch-") else "-".join(cell.split("-")[:2])


def main(file: str) -> None:
    pairs: dict[tuple[str, str], list[float]] = {}
    bounds: list[float] = []
    for line in Path(file).read_text().splitlines():
        told = json.loads(line)
        pair = told["writer"], told["reader"]
        before = pairs.get(pair, [0.0] * len(told["gaps"]))
        pairs[pair] = [max(each) for each in zip(before, told["gaps"], strict=True)]
        bounds = [max(each) for each in zip(bounds or told["bounds"], told["bounds"], strict=True)]
    grouped = defaultdict(list)
    for (writer, reader), gaps in pairs.items():
        grouped[family(writer), family(reader)].append(gaps)
    print("| writer | reader | pairs | SGD | AdamW |")
    print("|---|---|---|---|---|")
    for (writer, reader), all_gaps in sorted(grouped.items()):
        worst = " | ".join(f"{max(each):.0e}" for each in zip(*all_gaps, strict=True))
        print(f"| {writer} | {reader} | {len(all_gaps)} | {worst} |")
    print("bounds", bounds, "cells", len({cell for pair in pairs for cell in pair}))


if __name__ == "__main__":
    main(sys.argv[1])
