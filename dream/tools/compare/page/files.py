"""Write the report: the page, its pictures as files and as markup, and its figures."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from dream._errors import ConfigurationError, NotInstalled
from dream.files.whole import write_json, write_whole
from dream.tools.compare.page import columns, pictures, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NEEDED = ("matplotlib", "jinja2")


def check(folder: Path) -> None:
    """Refuse what could not be written, before anything is measured."""
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        raise NotInstalled(
            f"{' and '.join(absent)} not installed. Needed by: --report {folder}. "
            "Run: pip install 'dream-systems[report]'"
        )
    try:
        _check_folder(folder)
    except OSError as error:  # too long a name, or not ours to look into
        raise ConfigurationError(
            f"No report can be written there. Received: --report {folder} ({error.strerror}). "
            "Name another folder."
        ) from error


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(
            f"A report needs a folder. Received: --report {folder}, a file. Name another one."
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigurationError(
            f"The folder for the report has files in it. Received: --report {folder}. Choose one "
            "that is empty or does not exist yet, or empty this one."
        )
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise ConfigurationError(
            f"A folder cannot be created there. Received: --report {folder}. Make "
            f"{folder.absolute().parent} first, or name another one."
        )
    with TemporaryFile(dir=folder if folder.is_dir() else folder.absolute().parent):
        pass  # one can be made


_NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}


def as_file(figure: Figure, path: Path) -> None:
    """A PNG on white."""
    figure.savefig(path, dpi=150, facecolor="white")


def as_markup(figure: Figure, name: str) -> str:
    """Return an `<svg>` whose text has the colour of the page around it. name: makes the ids in it
    its own, for several pictures share a page."""
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context(style.rc() | {"svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata=_NOTHING)
    markup = file.getvalue()
    markup = markup[markup.index("<svg") :].replace(style.INK, "currentColor")
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.DOTALL)
    markup = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", markup, count=1, flags=re.DOTALL)
    markup = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", markup, count=1, flags=re.DOTALL)
    return _own_ids(markup, name)


def _own_ids(markup: str, name: str) -> str:
    """matplotlib calls the first panel of every picture `axes_1`; a page has each id once."""
    markup = re.sub(r'\bid="', f'id="{name}-', markup)
    markup = re.sub(r"url\(#", f"url(#{name}-", markup)
    return re.sub(r'href="#', f'href="#{name}-', markup)


PAGE, FIGURES = "report.html", "figures.json"
_TEMPLATE = "template.html"


def write(folder: Path, figures: Mapping[str, Any]) -> Path:
    """Write everything into `folder`, the page last. Returns the page's path."""
    folder.mkdir(exist_ok=True)
    shown = []
    for picture, figure in pictures.drawn(figures):
        as_file(figure, folder / f"{picture.name}.png")
        shown.append((picture, as_markup(figure, picture.name)))
    write_json(folder / FIGURES, figures)
    page, text = folder / PAGE, render(figures, shown).encode()
    write_whole(page, lambda file: file.write(text))
    return page


def render(figures: Mapping[str, Any], shown: list[tuple[pictures.Picture, str]]) -> str:
    """Render the page. shown: pictures and their markup."""
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
