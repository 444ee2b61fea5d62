"""What ranks do to hold torch's store to its own address, group after group."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import distributed

from dream import cluster
from dream.adapters.pytorch.collectives import start_group


def two_groups() -> tuple[list[float], list[bytes | None]]:
    """The sums over two groups, the first of which the script has ended, and where each one's store
    was. Rank 0 listens at the first one's address by then, and answers nobody."""
    place = cluster.detect()
    assert place.master is not None
    sums, taken = [], None
    for _ in range(2):
        start_group(place, "gloo")
        mine = torch.tensor([float(place.rank + 1)])
        distributed.all_reduce(mine)
        sums.append(mine.item())
        distributed.destroy_process_group()
        if place.rank == 0 and taken is None:
            with suppress(OSError):  # the group's own store may be there yet, and is as good
                taken = cluster.listener_at(cluster.own_host(place), place.master.port)
        cluster.meet(place, f"group-{len(sums)}")
    if taken is not None:
        taken.close()
    return sums, [cluster.found(place, f"torch/store-{number}") for number in range(3)]
