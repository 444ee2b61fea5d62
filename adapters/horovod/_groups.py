"""Some of the ring's ranks, as a process set of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dream._errors import Unsupported


def group_of(ranks: Sequence[int], core: Any) -> Any | None:
    """The process set of these ranks; None on the others. Every rank of the ring calls it.

    core: the frontend's module. The core numbers a set's ranks in ascending order.
    """
    if list(ranks) != sorted(ranks):
        raise Unsupported(
            "The ring numbers a group's ranks in ascending order. Received: "
            f"{list(ranks)}. Give them sorted, or take another reduction."
        )
    if len(ranks) == core.size():
        return core.global_process_set
    known = {tuple(s.ranks): s for s in _sets(core)}
    chosen = known.get(tuple(ranks)) or core.add_process_set(list(ranks))
    return chosen if chosen.included() else None


def _sets(core: Any) -> list[Any]:
    from horovod.common.process_sets import _temp_process_set_object

    table = core.mpi_ops._basics._get_process_set_ids_and_ranks()
    found = []
    for number, ranks in table.items():
        one = _temp_process_set_object(number)
        one.ranks = list(ranks)
        found.append(one)
    return found
