"""Figures for TensorBoard, by its own package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from dream._errors import NotInstalled


@final
class Board:
    """Writes events to a folder."""

    def __init__(self, folder: str) -> None:
        self._writer: Any = _writer(folder)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


def _writer(folder: str) -> Any:
    try:
        from tensorboard.summary import Writer
    except ModuleNotFoundError as error:
        raise NotInstalled(
            "TensorBoard's events are written by its own package. Received: "
            f"tensorboard={folder!r}, and no such package. Install dream-systems[tensorboard], or "
            "leave tensorboard out."
        ) from error
    return Writer(folder)
