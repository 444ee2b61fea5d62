"""Which server holds which parameter: whole parameters, evened out by size."""

from __future__ import annotations

from collections.abc import Sequence

from dream._errors import ConfigurationError


def shards(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """The indices of each server's parameters, ascending. Parameters stay whole, since some
    optimizers need all of one; the largest is placed first, where least is."""
    if len(sizes) < servers:
        raise ConfigurationError(
            f"There are more servers than parameters. Received: servers={servers}, {len(sizes)} "
            f"parameters. Use at most servers={len(sizes)}."
        )
    placed: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        server = min(range(servers), key=lambda s: (loads[s], len(placed[s]), s))
        placed[server].append(index)
        loads[server] += sizes[index]
    return [sorted(indices) for indices in placed]
