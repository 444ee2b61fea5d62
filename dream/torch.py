"""What dream brings to torch's scripts: the four primitives of one process that drives many
devices. Torch is imported once a name of it is used."""

from typing import Any

__all__ = ["gather", "parallel_apply", "replicate", "scatter"]  # noqa: F822  (loaded on use)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from dream.strategies import registry

        return registry.load(f"dream.adapters.pytorch.parallel.replicas.primitives:{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
