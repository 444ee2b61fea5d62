"""A picture as a file, and as markup in the page."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dream.tools.compare.page import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}


def as_file(figure: Figure, path: Path) -> None:
    """A PNG on white."""
    figure.savefig(path, dpi=150, facecolor="white")


def as_markup(figure: Figure, name: str) -> str:
    """An `<svg>` whose text has the colour of the page around it. name: makes the ids in it its
    own, for several pictures share a page."""
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
