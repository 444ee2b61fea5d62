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
from dream._strategy import Strategy, current, strategy
from dream._topology import Topology
from dream.collectives import Communicator, Handle
from dream.launch.function import launch
from dream.launch.joined import early
from dream.strategies.making import communicator

if TYPE_CHECKING:
    from dream.files.first import rank_zero_first
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
    "rank_zero_first",
    "strategy",
]
__version__ = "0.1.0"
early.watch_from_import()


def __getattr__(name: str) -> Any:
    """Load on use: the core imports no tool, and `import dream` is quick."""
    if name == "rank_zero_first":
        from dream.files.first import rank_zero_first

        return rank_zero_first
    if name == "port_check":
        from dream.tools.port_check.check import port_check

        return port_check
    if name in ("keras", "torch"):
        import importlib

        return importlib.import_module(f"dream.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
