"""Reading variables: what is malformed is named with its value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dream._errors import ConfigurationError
from dream._topology import Cluster, Endpoint

LARGEST_PORT = 65535
LOOPBACK = "127.0.0.1"
_LOOPBACK = ("localhost", "::1", "")


def integer(environ: Mapping[str, str], name: str, source: str, minimum: int = 0) -> int:
    """A variable that must be there and be a whole number of at least `minimum`."""
    text = environ[name]
    try:
        value = int(text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise ConfigurationError(
            f"{name} must be a whole number of at least {minimum}. Received from {source}: "
            f"{name}={text!r}. Correct it, or unset {source}'s variables to run alone."
        )
    return value


def require(environ: Mapping[str, str], names: tuple[str, ...], source: str) -> None:
    """All of the names, or an error that tells the set from the missing."""
    missing = [name for name in names if not environ.get(name)]
    if missing:
        there = ", ".join(f"{name}={environ[name]!r}" for name in names if environ.get(name))
        raise ConfigurationError(
            f"{source}'s variables are half set: {', '.join(missing)} missing. Received: "
            f"{there or 'none of them'}. Set them all, or unset them to run alone."
        )


def port(environ: Mapping[str, str], name: str, source: str) -> int:
    value = integer(environ, name, source, minimum=1)
    if value > LARGEST_PORT:
        raise ConfigurationError(
            f"{name} is no port. Received from {source}: {name}={environ[name]!r}. "
            f"Give a number from 1 to {LARGEST_PORT}."
        )
    return value


def endpoint(text: str, what: str) -> Endpoint:
    """`host:port` as text; `what` names where it was written."""
    host, colon, number = text.rpartition(":")
    if not colon or not host or not number.isdigit() or not 0 < int(number) <= LARGEST_PORT:
        raise ConfigurationError(
            f"{what} holds no host:port. Received: {text!r}. Write it like 10.0.0.1:2222."
        )
    return Endpoint(host.strip("[]"), int(number))


def inward(cluster: Cluster) -> Cluster:
    """The same on one host, with all addresses on loopback, whatever name the launcher has for the
    host: what the job listens on, nobody else reaches."""
    if cluster.alone or not cluster.one_host:
        return cluster
    return replace(
        cluster,
        master=_on_loopback(cluster.master),
        rendezvous=_on_loopback(cluster.rendezvous),
        workers=tuple(Endpoint(LOOPBACK, worker.port) for worker in cluster.workers),
    )


def _on_loopback(there: Endpoint | None) -> Endpoint | None:
    return there and Endpoint(LOOPBACK, there.port)


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK or host.startswith("127.")


def next_port(number: int) -> int:
    """The one beside it, which a second service takes."""
    return number + 1 if number < LARGEST_PORT else number - 1
