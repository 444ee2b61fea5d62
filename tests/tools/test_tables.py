"""Tables fit their console, and cut neither a name nor a figure."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from dream.tools import support, tables

HEADERS = ("strategy", "loss", "seconds\nto score", "peak", "verdict")
ROWS = (("mirrored", "0.2419", "12.5", "1,409", "equal"), ("local_sgd", "0.25", "9", "8", "learns"))


def made() -> Table:
    whole = tables.table(*HEADERS, words=("strategy", "verdict"), gap=1)
    for row in ROWS:
        whole.add_row(*row)
    return whole


def shown(width: int, names: int = 1) -> str:
    out = io.StringIO()
    tables.show(Console(file=out, width=width), made(), names)
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 26, 32, 80])
def test_every_figure_is_shown_beside_its_name(width: int) -> None:
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    for name, *figures in ROWS:
        lines = [line for line in text.splitlines() if line.startswith(name)]
        assert " ".join(" ".join(lines).replace(name, "").split()) == " ".join(figures)


def test_what_fits_is_one_table() -> None:
    assert shown(80).count("local_sgd") == 1
    assert shown(32).count("local_sgd") == 2


@pytest.mark.parametrize("width", [60, 80])
def test_names_of_options_are_whole(width: int) -> None:
    out = io.StringIO()
    support.strategy(Console(file=out, width=width), "mirrored")
    for name in ("sync_batch_norm", "static_graph", "clip_norm"):
        assert any(line.startswith(f"{name} ") for line in out.getvalue().splitlines())
