"""Hold other libraries' servers to where the job's ranks are: native/sockets/dream_listen.h."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, c_char_p, c_int, c_uint16, get_errno
from functools import cache
from os import strerror

from dream import cluster
from dream._errors import DreamError, NotInstalled
from dream._log import logger
from dream._topology import Cluster, Endpoint
from dream.cluster import PortRange
from dream.shared_memory.library import status


def hold(
    place: Cluster,
    what: str,
    libraries: Sequence[str],
    *,
    at: Endpoint | None = None,
    name: str | None = None,
) -> str:
    """Before a library starts to listen: have it listen in the job's range of ports, take nobody
    but this user's processes on one host, and listen at `at` where it would at every address, or
    at `name` where it would at what the host's own name stands for.

    what: it is, for messages. libraries: how their files' names begin. Empty where it holds, else
    why it does not; `NotInstalled` where the user asked for a range of ports, which it breaks.
    """
    within = cluster.port_range()
    try:
        core = _core()
        core.dream_listen_range(*((within.low, within.high) if within else (0, 0)))
        if core.dream_listen_own_user(int(place.one_host)) < 0:
            raise NotInstalled(f"the system does not tell whose a connection is: {_why()}")
        if at is not None:
            core.dream_listen_at(at.port, at.host.encode())
        for library in libraries:
            _check(library, core.dream_listen_hold(library.encode()))
            if name is not None:
                _check(library, core.dream_listen_as(library.encode(), name.encode()))
    except NotInstalled as error:
        if within is not None:
            raise _unheld(what, within, error) from error
        return str(error)
    return ""


def say_open(place: Cluster, what: str) -> None:
    """The line on what is open between hosts, where nothing but a network can keep others out."""
    logger.info(
        "%s listen%s without a token, at %s and the other hosts' addresses, on %s. Allow only the "
        "job's hosts to reach them: use a private network, or a firewall and --port-range",
        what, "" if " and " in what else "s", cluster.own_host(place), cluster.ports_in_words(),
    )  # fmt: skip


@cache
def _core() -> CDLL:
    found = status()
    if found.path is None:
        raise NotInstalled(found.why)
    try:
        core = CDLL(str(found.path), use_errno=True)
    except OSError as error:
        raise NotInstalled(f"its native core cannot be loaded: {error}") from error
    core.dream_listen_hold.argtypes = [c_char_p]
    core.dream_listen_as.argtypes = [c_char_p, c_char_p]
    core.dream_listen_at.argtypes = [c_uint16, c_char_p]
    core.dream_listen_range.argtypes = [c_uint16, c_uint16]
    core.dream_listen_own_user.argtypes = [c_int]
    return core


def _check(library: str, led: int) -> None:
    """Where it makes none of the calls, it is another library than the one that is known."""
    if led < 0:
        raise NotInstalled(f"this system does not let {library} be held: {_why()}")
    if led == 0:
        raise NotInstalled(f"{library} is not loaded, or listens in another way")


def _why() -> str:
    return strerror(get_errno())


def _unheld(what: str, within: PortRange, why: DreamError) -> NotInstalled:
    return NotInstalled(
        f"{what} cannot be restricted to a port range here. Received: {within}, and {why}. Remove "
        "the range, or use another reduction."
    )
