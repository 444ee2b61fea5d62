"""Train over many devices by one word: `with dream.strategy("mirrored"):`."""

from dream._communicator import communicator
from dream._errors import (
    CheckpointError,
    ConfigurationError,
    Desynchronized,
    DreamError,
    NotInstalled,
    Unsupported,
    WorkerFailed,
)
from dream._strategy import Strategy, current, strategy
from dream._topology import Topology
from dream.collectives import Communicator, Handle
from dream.launch.function import launch
from dream.tools.port_check.function import port_check

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
