"""Which framework each rank of a job has, and what joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from dream import cluster
from dream._errors import ConfigurationError, Desynchronized
from dream._framework import check
from dream._log import logger
from dream._topology import Cluster
from dream.mixed.resync import Resyncs
from dream.strategies.spec import Framework

RING, SHARED = "horovod", "shared_memory"
_meetings = count()


def frameworks(place: Cluster, own: Framework, words: str) -> tuple[Framework, ...]:
    """Every rank's framework, in rank order. Every rank calls it as often as the others.

    words: how the block is written, which must be the same on every rank.
    """
    if place.alone:
        return (own,)
    said = cluster.exchange(
        place, f"block-{next(_meetings)}", f"{own} {words}".encode(), range(place.world_size)
    )
    everybody = [text.decode().partition(" ") for text in said]
    _check_same([words for _, _, words in everybody])
    return tuple(check(name, "the ranks' own words") for name, _, _ in everybody)


def block_words(name: str, reduction: str, seed: int | None, given: Mapping[str, object]) -> str:
    """A block as it is written, less what may differ between ranks."""
    options = {"reduction": reduction, "seed": seed, **given}
    inside = ", ".join(f"{key}={value!r}" for key, value in sorted(options.items()))
    return f"{name}({inside})"


def is_mixed(frameworks: Sequence[Framework]) -> bool:
    """Whether the ranks are of more than one framework."""
    return len(set(frameworks)) > 1


def check_reduction(asked: str, frameworks: Sequence[Framework]) -> None:
    """Refuse what ranks of these frameworks cannot reduce with."""
    if is_mixed(frameworks) and asked not in ("auto", RING, SHARED):
        raise ConfigurationError(
            "Ranks of two frameworks meet on the Horovod ring or in shared memory: no other "
            f"transport supports both frameworks. Received: reduction={asked!r}, "
            f"{by_rank(frameworks)}. Pass reduction='horovod' or 'shared_memory', or remove it."
        )


def reduction(asked: str, frameworks: Sequence[Framework]) -> str:
    """What ranks of these frameworks reduce with: as `asked`, or the ring where they differ."""
    check_reduction(asked, frameworks)
    if not is_mixed(frameworks):
        return asked
    if asked == "auto":
        logger.info("%s: they meet on the Horovod ring (reduction='horovod')", by_rank(frameworks))
    return RING if asked == "auto" else asked


def resyncs(frameworks: Sequence[Framework], options: Mapping[str, object]) -> Resyncs | None:
    """What keeps ranks of several frameworks together."""
    every = options.get("resync")
    assert every is None or isinstance(every, int)
    return Resyncs(every) if is_mixed(frameworks) else None


def by_rank(frameworks: Sequence[Framework]) -> str:
    """`torch on rank 0, tensorflow on rank 1`."""
    names = dict.fromkeys(frameworks)
    ranks = {name: [str(r) for r, f in enumerate(frameworks) if f == name] for name in names}
    return ", ".join(
        f"{name} on rank{'s' if len(where) > 1 else ''} {' and '.join(where)}"
        for name, where in ranks.items()
    )


def _check_same(words: Sequence[str]) -> None:
    for rank, theirs in enumerate(words):
        if theirs != words[0]:
            raise Desynchronized(
                f"The ranks opened different blocks. Received: {words[0]} on rank 0, {theirs} on "
                f"rank {rank}. Write the same name, reduction, seed and options on every rank."
            )
