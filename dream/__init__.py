"""Train over many devices by one word: `with dream.strategy("mirrored"):`."""

from typing import TYPE_CHECKING, Any

from dream._errors import (
    CheckpointError,
    ConfigurationError,
    Desynchronized,
    DreamError,
    NotInstalled,
    Unsupported,
    WorkerFailed,
)
from dream._strategy import Strategy, communicator, current, strategy
from dream._topology import Topology
from dream.collectives import Communicator, Handle
from dream.launch.function import launch

if TYPE_CHECKING:
    from dream.tools.port_check.check import port_check

__all__ = [
    "CheckpointError",
    "Communicator",
    "ConfigurationError",
    "Desynchronized",
    "DreamError",
    "Handle",
    "NotInstalled",
    "Strategy",
    "Topology",
    "Unsupported",
    "WorkerFailed",
    "communicator",
    "current",
    "launch",
    "port_check",
    "strategy",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load a tool on use: the core imports none."""
    if name == "port_check":
        from dream.tools.port_check.check import port_check

        return port_check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
