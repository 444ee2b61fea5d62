"""Where host 0 is reached by the others."""

from __future__ import annotations

import socket
import time

from dream._errors import ConfigurationError
from dream.cluster import startup_seconds
from dream.cluster._read import LOOPBACK, is_loopback
from dream.launch.job import Job

_PAUSE_SECONDS = 0.2


def reachable_address(job: Job) -> str:
    """The address that --master-addr means on host 0, waited for where its name is not known yet.
    ConfigurationError where only this host itself could reach it."""
    host = job.master_addr
    if is_loopback(host):
        return LOOPBACK
    address = _resolved(host)
    if is_loopback(address):
        raise ConfigurationError(
            "Other hosts cannot reach this one by --master-addr, which is a loopback address here. "
            f"Received: {host}, which this host resolves to {address} (look at /etc/hosts). Give "
            f"{_example()} as --master-addr on every host."
        )
    return address


def _resolved(host: str) -> str:
    limit = time.monotonic() + startup_seconds()
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return str(found[0][4][0])
        except OSError as error:
            if time.monotonic() > limit:
                raise ConfigurationError(
                    "The name of host 0 is not known to itself. Received: --master-addr "
                    f"{host} ({error.strerror}). Give an address of this host."
                ) from error
        time.sleep(_PAUSE_SECONDS)


def _example() -> str:
    """An address of this host that others may reach. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of nobody: it only picks the route
            address: str = probe.getsockname()[0]
        except OSError:
            return "its address in the network"
    return f"its address in the network, such as {address},"
