"""SIGTERM means to a rank what it means to Python, in a cluster of TensorFlow's too."""

from __future__ import annotations

import contextlib
import signal


def give_back() -> None:
    """Call it once the cluster is up: TensorFlow has taken the signal then, and does nothing with
    it but keep it, from the script's own handler and from the system, which would end the rank."""
    with contextlib.suppress(ValueError):  # only the main thread may
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
