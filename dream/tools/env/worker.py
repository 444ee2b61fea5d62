"""What runs in both ranks: a sum over one backend after another, each checked."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import IO

import dream
from dream import _registry, cluster
from dream.files.whole import write_whole

_ELEMENTS = 1 << 18


def main(folder: Path, framework: str, names: list[str]) -> None:
    """Rank 0 leaves a file for each that works, with the seconds of a sum of 1 MiB."""
    import numpy as np

    rank = cluster.detect().rank
    for name in names:
        ranks = dream.communicator(name, framework=framework)
        mine = np.full(_ELEMENTS, rank + 1, np.float32)
        tensor = _registry.load(_registry.ON_GPU[framework])(mine) if name == "nccl" else mine
        ranks.all_reduce(tensor, "sum")
        ranks.barrier()
        start = perf_counter()
        total = ranks.all_reduce(tensor, "sum")
        took = perf_counter() - start
        wanted = sum(range(1, ranks.world_size + 1))
        if not bool((total == wanted).all() if name != "nccl" else float(total[0]) == wanted):
            raise AssertionError(f"{name} adds up to {float(total[0])}, not to {wanted}")
        if rank == 0:
            write_whole(folder / name, partial(_told, json.dumps(took)))


def _told(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
