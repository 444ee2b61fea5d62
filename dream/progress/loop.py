"""The batches of a loop, and what is shown and written while they are worked on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

from dream._errors import NotInstalled
from dream.data.tracked import Tracked
from dream.progress.display import Display, Figures, display


@final
class TensorBoardWriter:
    """Writes figures to a folder as events, by TensorBoard's own package."""

    def __init__(self, folder: str) -> None:
        try:
            from tensorboard.summary import Writer
        except ModuleNotFoundError as error:
            raise NotInstalled(
                "TensorBoard's events are written by its own package. Received: "
                f"tensorboard={folder!r}, and no such package. Install dream-systems[tensorboard], "
                "or remove tensorboard."
            ) from error
        self._writer: Any = Writer(folder)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


Open = Callable[[str, int | None], Display]


@final
class Progress:
    """Yields `batches` as they are. May be iterated again, an epoch each time.

    shown: whether this rank shows anything. parts, track: see `Figures`. loss: the last step's,
    where dream took it.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        *,
        name: str,
        shown: bool,
        parts: int,
        track: Tracked | None,
        loss: Callable[[], Any],
        board: TensorBoardWriter | None,
        open_display: Open = display,
    ) -> None:
        self._batches = batches
        self._name = name
        self._shown = shown
        self._parts = parts
        self._track = track
        self._loss = loss
        self._board = board
        self._open = open_display
        self._steps = 0
        self._figures: Figures | None = None

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # an error of its own where it has none

    def tell(self, **figures: Any) -> None:
        """Show these numbers too, or 0-d tensors, which are read when they are shown."""
        if self._figures is not None:
            self._figures.tell(figures)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._batches)  # here, and not with the first batch
        return self._watched(batches) if self._shown else batches

    def _watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        figures = self._figures = Figures(self._track, self._parts)
        shown = self._open(self._name, self._length())
        last = time.monotonic()
        try:
            for batch in batches:
                figures.took(batch)
                yield batch
                self._steps += 1
                if time.monotonic() - last >= shown.seconds:
                    last = time.monotonic()
                    self._show(figures, shown.show)
        finally:
            self._show(figures, shown.close)

    def _show(self, figures: Figures, show: Callable[[Figures], None]) -> None:
        loss = self._loss()
        if loss is not None:
            figures.tell({"loss": loss})
        show(figures)
        if self._board is not None:
            speed = {"samples_a_second": figures.samples_a_second}
            self._board.write(self._steps, figures.numbers | speed)

    def _length(self) -> int | None:
        try:
            return len(self)
        except TypeError:
            return None
