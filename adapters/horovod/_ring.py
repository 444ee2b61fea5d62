"""Stand in the ring: started once for a process and framework, the same way in both; some of its
ranks are a process set of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dream import cluster
from dream._errors import ConfigurationError, Desynchronized, DreamError, Unsupported, WorkerFailed
from dream._log import logger
from dream._topology import Cluster
from dream.shared_memory import listening

_LIBRARY = "mpi_lib"
_sides: list[str] = []


def stand_in(core: Any, place: Cluster, framework: str) -> None:
    """Initialise one framework's side of the core, or take the one that is up.

    core: the module with Horovod's `init`, `is_initialized`, `rank` and `size`. It leaves the
    ring by itself when the interpreter ends. A core that cannot connect aborts the process, so
    the ranks meet first.
    """
    if not core.is_initialized():
        # by number, not by name: the others may come with another framework
        cluster.meet(place, f"horovod-{len(_sides)}")
        _sides.append(framework)
        cluster.export_horovod(place)
        _hold(place)
        core.init()
    if (core.rank(), core.size()) != (place.rank, place.world_size):
        raise ConfigurationError(
            "Horovod was already initialized with another rank or size. Received: rank "
            f"{core.rank()} of {core.size()} from horovod, rank {place.rank} of {place.world_size} "
            f"from {place.source}. Remove hvd.init(): dream calls it."
        )


def _hold(place: Cluster) -> None:
    """Have the ring listen where the job's ranks are; rank 0 says what is open while it forms.

    Its process sets forget HOROVOD_GLOO_IFACE, and go by the host's name.
    """
    name = cluster.own_host(place)
    why = listening.hold(place, "The Horovod ring", [_LIBRARY], name=name)
    if place.rank != 0:
        return
    if not place.one_host:
        listening.say_open(place, "The Horovod ring, while it forms,")
    elif why:
        logger.warning(
            "while the Horovod ring forms, any user of this machine can connect to it: %s", why
        )


def stands() -> bool:
    """Whether this process is in the ring."""
    return bool(_sides)


def explained(error: Exception) -> DreamError:
    """What the core says when a collective fails, in dream's words."""
    text = (str(error).strip() or "no message").splitlines()[0].rpartition("}} ")[2]
    if "ismatched" in text or "ops must match" in text:
        return Desynchronized(
            f"The ranks called a collective with different tensors. Received: {text} Make the same "
            "calls, with the same shapes and dtypes, on every rank."
        )
    return WorkerFailed(
        f"A rank left the ring or fell silent during a collective. Received: {text} Look at that "
        "rank's log; then start the job again."
    )


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
