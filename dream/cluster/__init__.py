"""Where this process stands: one file per launcher's environment, and what `dream run` asks.

The only reader of os.environ, beside launch.
"""

from __future__ import annotations

import os

from dream._topology import Cluster

STRATEGY = "DREAM_STRATEGY"
FRAMEWORK = "DREAM_FRAMEWORK"


def detect() -> Cluster:
    """This process's place, from the first launcher whose variables are there."""
    return Cluster()


def requested_strategy() -> str | None:
    """What `dream run --strategy` asked for, if anything."""
    return os.environ.get(STRATEGY) or None


def requested_framework() -> str | None:
    """What `dream run --framework` asked for this rank, if anything."""
    return os.environ.get(FRAMEWORK) or None
