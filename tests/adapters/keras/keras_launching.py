"""Starts the ranks of these tests; Keras is imported in them, not beside pytest."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from launch_scripts import keras_on

import dream

SECONDS = 600


@dataclass(frozen=True)
class Cell:
    """A backend, and how many ranks or devices share a batch."""

    backend: str
    ranks: int
    devices: int = 1

    def __str__(self) -> str:
        return f"{self.backend}-{self.ranks}x{self.devices}"

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.devices == 1 else {"devices": self.devices}


CELLS = [Cell("torch", 2), Cell("tensorflow", 1, 2), Cell("tensorflow", 2)]


def call(
    cell: Cell,
    module: str,
    name: str,
    *args: Any,
    stall: float | None = None,
    strategy: str = "mirrored",
) -> list[Any]:
    """What `module.name(*args)` gives on each rank of a cell. stall: seconds of patience, where
    ranks are to miss each other; known before Keras is imported, when the ranks meet."""
    strategy = strategy if cell.devices == 1 else f"mirrored:devices={cell.devices}"
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    env |= keras_on(cell.backend)
    env |= {} if stall is None else {"DREAM_STALL_SECONDS": str(stall)}
    return dream.launch(
        by_name, module, name, args, n=cell.ranks, framework=cell.backend, strategy=strategy,
        timeout=SECONDS, env=env,
    )  # fmt: skip


def by_name(module: str, name: str, args: tuple[Any, ...]) -> Any:
    import keras  # noqa: F401  (first, so that `--strategy` finds the backend before any op)

    return getattr(import_module(module), name)(*args)


def source(module: str) -> str:
    return Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
