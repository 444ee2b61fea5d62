"""What dream brings to Keras's scripts. Keras is imported once a name of it is used."""

from typing import Any

__all__ = ["Checkpoint"]  # noqa: F822  (loaded on use)


def __getattr__(name: str) -> Any:
    if name == "Checkpoint":
        from dream.strategies import registry

        return registry.load("dream.adapters.keras.checkpoint.callback:Checkpoint")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
