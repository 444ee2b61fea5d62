"""The report's files, from the figures that `--json` writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dream.files.whole import write_json, write_whole
from dream.tools.compare.page import columns, drawing, pictures

PAGE, FIGURES = "report.html", "figures.json"
_TEMPLATE = "template.html"


def write(folder: Path, figures: Mapping[str, Any]) -> Path:
    """Write everything into `folder`, the page last. Returns the page's path."""
    folder.mkdir(exist_ok=True)
    shown = []
    for picture, figure in pictures.drawn(figures):
        drawing.as_file(figure, folder / f"{picture.name}.png")
        shown.append((picture, drawing.as_markup(figure, picture.name)))
    write_json(folder / FIGURES, figures)
    page, text = folder / PAGE, render(figures, shown).encode()
    write_whole(page, lambda file: file.write(text))
    return page


def render(figures: Mapping[str, Any], shown: list[tuple[pictures.Picture, str]]) -> str:
    """The page. shown: pictures and their markup."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    house = Environment(
        loader=PackageLoader("dream.tools.compare.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
    )
    headers, rows = columns.grid(figures)
    return house.get_template(_TEMPLATE).render(
        figures=figures,
        headers=headers,
        rows=rows,
        reasons=[cell for cell in figures["cells"] if cell["reason"]],
        pictures=shown,
    )
