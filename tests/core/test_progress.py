"""What a loop's progress shows: the batches untouched, the figures global, rank 0 alone."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dream._errors import NotInstalled
from dream.progress.display import (
    BETWEEN_LINES,
    BarDisplay,
    Display,
    Figures,
    LinesDisplay,
    clock,
    display,
)
from dream.progress.loop import Progress, TensorBoardWriter


class Counted:
    """Data that knows where its training stands, as loaders of the block do."""

    def __init__(self, batches: int = 3, first: int = 0) -> None:
        self.position, self.batches = (first, 16 * first), batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.position[0], self.batches):
            self.position = number + 1, 16 * (number + 1)
            yield np.zeros((8, 2)), np.zeros(8)
        self.position = 0, 0

    def state(self) -> dict[str, Any]:
        return {"batches": self.position[0], "samples": self.position[1]}

    def load(self, state: Mapping[str, Any]) -> None:
        del state


def _progress(batches: Any, text: io.StringIO, *, terminal: bool = False, **options: Any) -> Any:
    console = Console(file=text, force_terminal=terminal, width=120)

    def open_display(name: str, total: int | None) -> Display:
        return display(name, total, console)

    track = batches if isinstance(batches, Counted) else None
    default: dict[str, Any] = {"name": "epoch 1", "shown": True, "parts": 2, "board": None}
    default |= {"loss": lambda: None, "track": track, "open_display": open_display}
    return Progress(batches, **{**default, **options})


def test_a_line_at_the_end_where_there_is_no_terminal() -> None:
    text = io.StringIO()
    taken = list(_progress(Counted(), text, loss=lambda: np.float32(0.25)))
    assert len(taken) == 3
    (line,) = text.getvalue().splitlines()
    assert line.startswith("epoch 1 3/3 batches, loss 0.25, "), line
    assert "samples/s, in 0:00:0" in line


def test_a_bar_on_a_terminal() -> None:
    text = io.StringIO()
    for _ in _progress(Counted(), text, terminal=True):
        pass
    assert "3/3" in text.getvalue()
    assert "samples/s" in text.getvalue()
    console = Console(file=io.StringIO(), force_terminal=True)
    bar = display("", 1, console)
    assert isinstance(bar, BarDisplay)
    assert isinstance(display("", 1, Console(file=io.StringIO())), LinesDisplay)
    bar.close(Figures(None, 1))


def test_other_ranks_show_nothing_and_yield_the_same() -> None:
    text = io.StringIO()
    batches = Counted()
    progress = _progress(batches, text, shown=False)
    progress.tell(accuracy=1.0)
    assert len(list(progress)) == len(progress) == 3
    assert text.getvalue() == ""


def test_a_loop_that_is_left_says_how_far_it_came() -> None:
    text = io.StringIO()
    progress = _progress([(np.zeros((4, 2)),)] * 5, text)
    for number, _ in enumerate(progress):
        progress.tell(accuracy=np.float64(0.5))
        if number == 1:
            break
    assert text.getvalue().startswith("epoch 1 2/5 batches, accuracy 0.5, ")


def test_samples_are_those_of_all_ranks_since_the_loop_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    data = Counted(batches=4, first=2)
    figures = Figures(data, parts=2)
    for batch in data:
        figures.took(batch)
        now[0] += 1.0
        if data.position[0] == 3:
            assert figures.samples_a_second == 16.0
            assert figures.batches == 3
            assert figures.seconds_left(4) == 1.0
            assert figures.seconds_left(None) is None
    assert figures.samples_a_second == 16.0
    assert figures.batches == 4


def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    text = io.StringIO()
    for _ in _progress(Counted(), text):
        now[0] += BETWEEN_LINES * 0.6
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert "2/3 batches" in lines[0]
    assert "0:00:06 left" in lines[0]


def test_a_clock() -> None:
    assert [clock(65.4), clock(3600), clock(None)] == ["0:01:05", "1:00:00", "-:--:--"]


def test_events_are_written_by_tensorboard(tmp_path: Any) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoardWriter(str(tmp_path))
    progress = _progress(Counted(), io.StringIO(), loss=lambda: 0.5, board=board)
    for _ in range(2):
        list(progress)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert set(read.Tags()["tensors"]) == {"loss", "samples_a_second"}
    assert [event.step for event in read.Tensors("loss")] == [3, 6]


def test_without_tensorboard_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.summary", None)
    with pytest.raises(NotInstalled, match=r"dream-systems\[tensorboard\]"):
        TensorBoardWriter("runs")
