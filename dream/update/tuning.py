"""The ring's tuning of itself, where a block asks for it: the same in every framework."""

from __future__ import annotations

from collections.abc import Callable

from dream._adapter import Plan
from dream.strategies import registry
from dream.update.update import Knobs


def begin(plan: Plan) -> Callable[[], None]:
    """Before the ring starts. What says, at the block's end, what it has found out."""
    if not Knobs.of(plan.options).autotune or plan.cluster.alone:
        return lambda: None
    tuning = registry.load(registry.TUNING)(plan.cluster, plan.transport)
    return (lambda: None) if tuning is None else tuning.tell
