"""A rank on one of two hosts: the sum that it gets, and what its host sent for it. On the command
line: REDUCTION ELEMENTS CALLS INTERFACE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import dream


def main() -> None:
    reduction, elements, calls, interface = sys.argv[1:]
    torch.set_num_threads(1)
    c = dream.communicator(reduction, framework="torch", check=False)
    x = torch.arange(int(elements), dtype=torch.float32) + c.rank
    c.all_reduce(x, "sum")  # connections are made
    c.barrier()
    before = sent(interface)
    for _ in range(int(calls)):
        result = c.all_reduce(x, "sum")
    c.barrier()
    right = torch.equal(result, 4 * torch.arange(int(elements)) + 6.0)
    told = c.all_gather_object((right, (sent(interface) - before) / int(calls)))
    if c.rank == 0:
        print(json.dumps({"name": c.reduction, "told": told}))


def sent(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    main()
