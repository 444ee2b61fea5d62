"""What the environment asks of dream: the names of dream's own variables, and how they are read.

A user may set those marked *. They are dream's side of a rank's environment; torchrun's,
TensorFlow's and Horovod's names stand beside the code that reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dream._errors import ConfigurationError

LARGEST_PORT = 65535

STRATEGY = "DREAM_STRATEGY"
"""What `dream run --strategy` was given."""

FRAMEWORK = "DREAM_FRAMEWORK"
"""This rank's framework, from `dream run --framework`."""

FRAMEWORKS = "DREAM_FRAMEWORKS"
"""Every rank's framework by rank, with commas, from `dream run --framework`."""

RENDEZVOUS = "DREAM_RENDEZVOUS"
"""host:port of the store that `dream run` serves."""

RENDEZVOUS_PORT = "DREAM_RENDEZVOUS_PORT"
"""* Under another launcher: the port on which rank 0 serves the store: else MASTER_PORT + 1,
or one below 32500 where that is among those that systems hand out (from 32768)."""

PORT_RANGE = "DREAM_PORT_RANGE"
"""* LOW-HIGH: the ports that the job may listen on (any free one)."""

TOKEN = "DREAM_TOKEN"
"""* The word that a client of the store must know. On one host it can be left out; several that
are started by hand, by `dream run` or by torchrun need a common one."""

HOSTS = "DREAM_HOSTS"
"""The hosts' names in node order, with commas."""

OWN_HOROVOD = "DREAM_OWN_HOROVOD"
"""The number of the process in which HOROVOD_* are dream's own words to Horovod's core: there they
tell no launcher."""

STARTUP_SECONDS = "DREAM_STARTUP_SECONDS"
"""* How long ranks wait for one another at the start (60)."""

STALL_SECONDS = "DREAM_STALL_SECONDS"
"""* How long ranks wait in a call for one that lives and does not come, before that is an error
(1800, half an hour). A line says who is waited for after 60 seconds, or half of this where that is
shorter. The time in which the waiting rank was itself stopped does not count, and a rank that has
died is told at once."""

WARM = "DREAM_WARM"
"""* 0 starts every rank in an interpreter of its own, as `dream run --no-warm` does."""

OBSERVER = "DREAM_OBSERVER"
"""What watches this rank's script: "module:function words", as `_observers.register` takes it."""

SNAPSHOTS = "DREAM_SNAPSHOTS"
"""The folder that `dream run` keeps for a job's snapshots until it ends."""

CHECKPOINT = "DREAM_CHECKPOINT"
"""* The folder that a training is saved in by itself, as `dream run --checkpoint` sets it."""

CHECKPOINT_SECONDS = "DREAM_CHECKPOINT_SECONDS"
"""* How often, as `dream run --every` sets it (600)."""

COMMITS = "DREAM_COMMITS"
"""The folder in memory that `dream run` keeps for the commits of a job until it ends."""

AGAIN = "again"
"""The file in that folder which says that ranks which leave start again at once."""

COMMIT_STEPS = "DREAM_COMMIT_STEPS"
"""Every how many steps there is one, as `dream run --commit-every` sets it; unset for as often as
costs little."""

GO_ON_LATER = 85
"""The exit code of ranks that were asked to leave and have saved what is needed to go on."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What a training is saved in by itself, and every how many seconds; None for nowhere. commits:
    where it is kept in memory too, and every how many steps; None for as often as costs little."""

    folder: Path | None
    every: float
    commits: Path | None
    commit_every: int | None


def requested_strategy() -> str | None:
    """Return what `dream run --strategy` asked for, if anything."""
    return os.environ.get(STRATEGY) or None


def requested_framework() -> str | None:
    """Return what `dream run --framework` asked for this rank, if anything."""
    return os.environ.get(FRAMEWORK) or None


@contextmanager
def variable_set(name: str, text: str) -> Iterator[None]:
    """Have a variable of this process's set inside."""
    before = os.environ.get(name)
    os.environ[name] = text
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def unset_if(name: str, text: str) -> None:
    """Take back a variable of this process's that has this value."""
    if os.environ.get(name) == text:
        del os.environ[name]


def set_if_unset(variables: Mapping[str, str]) -> None:
    """Set variables of this process's that it has not."""
    for name, text in variables.items():
        os.environ.setdefault(name, text)


def started_by_dream() -> bool:
    """Whether `dream run` or `dream.launch` has started this process."""
    return bool(os.environ.get(RENDEZVOUS))


def frameworks_differ() -> bool:
    """Whether `dream run --framework` dealt out several."""
    return len({*os.environ.get(FRAMEWORKS, "").split(",")}) > 1


def snapshot_folder() -> Path | None:
    """Return where the job's snapshots are kept, under `dream run`."""
    folder = os.environ.get(SNAPSHOTS)
    return Path(folder) if folder else None


def checkpoints(environ: Mapping[str, str] = os.environ) -> Checkpoints:
    """Return what `dream run --checkpoint` asked for."""
    folder, commits = environ.get(CHECKPOINT), environ.get(COMMITS)
    steps = environ.get(COMMIT_STEPS)
    return Checkpoints(
        Path(folder) if folder else None, _seconds(CHECKPOINT_SECONDS, "600", environ),
        Path(commits) if commits else None, int(steps) if steps else None,
    )  # fmt: skip


def end_of_time(environ: Mapping[str, str] = os.environ) -> float:
    """Return when Slurm ends the job, in seconds since the epoch; infinity where it does not."""
    end = environ.get("SLURM_JOB_END_TIME", "")
    return float(end) if end.isdecimal() else float("inf")


def startup_seconds() -> float:
    """Return how long ranks wait for one another at the start: DREAM_STARTUP_SECONDS, else 60."""
    return _seconds(STARTUP_SECONDS, "60", os.environ)


def stall_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Return how long ranks wait in a call for one that does not come, though it lives:
    DREAM_STALL_SECONDS, else half an hour."""
    return _seconds(STALL_SECONDS, "1800", environ)


def _seconds(variable: str, default: str, environ: Mapping[str, str]) -> float:
    text = environ.get(variable) or default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise ConfigurationError(
            f"{variable} must be a number of seconds above 0. Received: {text!r}. "
            "Correct or unset it."
        )
    return seconds


def inherited() -> dict[str, str]:
    """Return this process's environment, to start another program with."""
    return dict(os.environ)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return DREAM_CACHE, else `dream` in the user's own cache folder."""
    own = environ.get("DREAM_CACHE")
    if own:
        return Path(own).expanduser()
    user = environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "dream"


def require(
    environ: Mapping[str, str], names: tuple[str, ...], source: str, shown: tuple[str, ...] = ()
) -> None:
    """Have all of the names, or raise an error that tells the set from the missing. shown: names
    that it tells of too."""
    missing = [name for name in names if not environ.get(name)]
    if missing:
        told = [name for name in dict.fromkeys(names + shown) if environ.get(name)]
        there = ", ".join(f"{name}={environ[name]!r}" for name in told)
        raise ConfigurationError(
            f"{source}'s variables are incomplete: {', '.join(missing)} missing. Received: "
            f"{there or 'none of them'}. Set them all, or unset them to run alone."
        )


def integer(environ: Mapping[str, str], name: str, source: str, minimum: int = 0) -> int:
    """Read a variable that must be there and be a whole number of at least `minimum`."""
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


def port(environ: Mapping[str, str], name: str, source: str) -> int:
    value = integer(environ, name, source, minimum=1)
    if value > LARGEST_PORT:
        raise ConfigurationError(
            f"{name} is not a valid port. Received from {source}: {name}={environ[name]!r}. Use a "
            f"number from 1 to {LARGEST_PORT}."
        )
    return value
