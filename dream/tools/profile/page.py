"""The report: one HTML file that needs no network, with the picture in it, and the picture as a
file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dream.files.whole import write_json, write_whole
from dream.tools.compare.page import style
from dream.tools.compare.page.files import FIGURES, PAGE, as_file, as_markup, check
from dream.tools.profile import report
from dream.tools.profile.spans import RankProfile
from dream.tools.profile.split import PARTS, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check", "write"]
_PICTURE = "where-a-step-goes"
_COLOURS = dict(zip(PARTS, (
    "#E69F00", "#56B4E9", "#0072B2", "#0072B2", "#D55E00", "#CC79A7", "#009E73", "#999999",
), strict=True))  # fmt: skip
_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>dream profile: {{ script }}</title>
<style>
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; font: 1rem/1.5 system-ui, sans-serif; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #8884; }
svg { max-width: 44rem; width: 100%; height: auto; }
</style>
</head>
<body>
<h1>Where a step's time goes</h1>
<p>{{ script }}: {{ figures.framework }}, {{ figures.strategy }}, the mean of {{ figures.steps }}
steps.</p>
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>
<figure>{{ picture|safe }}</figure>
<table>
<tr><th>rank</th><th>step, ms</th>{% for part in parts %}<th>{{ part }}</th>{% endfor %}</tr>
{% for rank in figures.ranks %}<tr><td>{{ rank.rank }}</td>
<td>{{ "%.2f"|format(1000 * rank.step_seconds) }}</td>
{% for part in parts %}<td>{{ "%.2f"|format(1000 * rank.parts[part]) }}</td>{% endfor %}</tr>
{% endfor %}</table>
</body>
</html>
"""


def write(folder: Path, script: str, profiles: Sequence[RankProfile]) -> Path:
    """Write the page, its picture and its figures into `folder`. Returns the page's path."""
    from jinja2 import Environment, StrictUndefined

    folder.mkdir(exist_ok=True)
    figures = report.document(profiles)
    picture = drawn(profiles)
    as_file(picture, folder / f"{_PICTURE}.png")
    write_json(folder / FIGURES, figures)
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE)
    text = page.render(
        script=script,
        figures=figures,
        sentences=[*report.waits(profiles), report.cost(profiles)],
        picture=as_markup(picture, _PICTURE),
        parts=[str(part) for part in PARTS if any(r["parts"][str(part)] for r in figures["ranks"])],
    )
    write_whole(folder / PAGE, lambda file: file.write(text.encode()))
    return folder / PAGE


def drawn(profiles: Sequence[RankProfile]) -> Figure:
    """Draw a bar a rank, cut into what its step's time goes to."""
    from matplotlib import rc_context

    rows = split(profiles)
    with rc_context(style.rc()):
        figure, panel = style.figure(1.4 + 0.35 * len(rows))
        starts = [0.0] * len(rows)
        for part in PARTS:
            widths = [1e3 * row.parts.get(part, 0.0) for row in rows]
            if any(widths):
                panel.barh(range(len(rows)), widths, left=starts, color=_COLOURS[part],
                           label=str(part))  # fmt: skip
                starts = [start + width for start, width in zip(starts, widths, strict=True)]
        panel.set_yticks(range(len(rows)), [f"rank {row.rank}" for row in rows])
        panel.invert_yaxis()
        panel.set_xlabel("milliseconds of a step")
        style.grid(panel, "x")
        figure.legend(loc="outside lower center", ncols=3)
    return figure
