"""Whether the system lets this process start a job, before anything is started."""

from __future__ import annotations

import os

from dream._errors import ConfigurationError

_EACH = 6
"""Descriptors that a rank costs: its two streams, both ends of the pipe it reports over, the port
held for it, a log."""

_COMMON = 32
"""Guard, store and its callers, what Python opens for a moment."""


def check_descriptors(n: int) -> None:
    """ConfigurationError where there are too few for n ranks."""
    try:
        import resource

        opened = len(os.listdir("/dev/fd"))  # noqa: PTH208 - names are enough
    except (ImportError, OSError):
        return  # a system that tells neither
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = opened + _EACH * n + _COMMON
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise ConfigurationError(
            f"The limit of open files is too low for so many ranks. Received: {n} ranks, which "
            f"need {needed}, and a limit of {limit}. Run `ulimit -n {max(4096, needed)}` first, or "
            "start fewer ranks."
        )
