"""Foreign exceptions turned into dream's, in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

from dream._errors import WorkerFailed


@contextmanager
def peers_may_fail(action: str) -> Iterator[None]:
    """Turn what torch.distributed raises when a peer is gone or late into `WorkerFailed`."""
    try:
        yield
    except (distributed.DistError, RuntimeError) as error:
        if isinstance(error, WorkerFailed):
            raise
        raise WorkerFailed(
            f"A peer is gone, late or out of step. Received during {action}: {error}. "
            "The rank that failed first says why."
        ) from error
