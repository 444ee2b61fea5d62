"""What dream brings to Keras's scripts. Keras is imported once a name of it is used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dream.adapters.keras.checkpoint.callback import Checkpoint

__all__ = ["Checkpoint"]


def __getattr__(name: str) -> Any:
    if name == "Checkpoint":
        from dream.adapters.keras.checkpoint.callback import Checkpoint

        return Checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
