"""Where TensorFlow's own server listens. It would take every interface, and serves whoever comes:
graphs that read and write files among what it runs."""

from __future__ import annotations

from collections.abc import Sequence

from dream._log import logger
from dream._topology import Cluster, Endpoint
from dream.cluster import local_address
from dream.shared_memory import listening

_LIBRARY = "libtensorflow_cc.so"
_WHO = "TensorFlow's server"


def hold(place: Cluster, workers: Sequence[Endpoint]) -> None:
    """Have this rank's server listen at its own endpoint alone; rank 0 says what is open."""
    own = workers[place.rank]
    address = local_address(own.host)
    at = Endpoint(address, own.port) if address else None
    why = listening.hold(place, _WHO, (_LIBRARY,), at=at)
    if address is None:
        why = f"{own.host} is no address of this host's"
    if place.rank != 0:
        return
    if why:
        logger.warning(
            "%ss listen on every interface, without a token, and read and write files for whoever "
            "reaches %s: %s. Keep others out with a firewall, or use another reduction=",
            _WHO, ", ".join(map(str, workers)), why,
        )  # fmt: skip
    elif not place.one_host:
        logger.info(
            "%ss listen without a token, and read and write files for whoever reaches %s. Let "
            "nobody but the job's hosts do so: a private network, a firewall, or another "
            "reduction=", _WHO, ", ".join(map(str, workers)),
        )  # fmt: skip
