"""Who loops over data: the script, or a loop of Keras's that the script has called."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Literal

from dream._errors import Unsupported
from dream._patches import value_set

_by: ContextVar[Literal["script", "loop", "step", "trial"]] = ContextVar(
    "dream.data_held", default="script"
)


def leave_loaders_alone() -> AbstractContextManager[None]:
    """Loaders that a library makes inside are its own business (Keras's fit makes one). It, and
    what it calls, evaluate by the script's: what they train on is taken from those otherwise."""
    return value_set(_by, "loop")


def taking_a_step() -> AbstractContextManager[None]:
    """A model's own step may go on with a loader of the script's, to train on."""
    return value_set(_by, "step")


def trying_a_step() -> AbstractContextManager[None]:
    """A step that is tried leaves the script's loaders where they are."""
    return value_set(_by, "trial")


def left_alone() -> bool:
    """Whether loaders are a library's own business now."""
    return _by.get() != "script"


def evaluates() -> bool:
    """Whether passes that begin now are a library's, or of what it calls between its steps."""
    return _by.get() == "loop"


def check_read() -> None:
    """Refuse to read a loader of the script's in a step that is tried."""
    if _by.get() == "trial":
        raise Unsupported(
            "A step that is tried takes no batch of the script's. Received: a DataLoader that is "
            "read in it. Give fit both in its data."
        )
