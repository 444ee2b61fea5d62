"""Draw the README's figures from the tables of benchmarks/README.md: docs/figures.svg, and
docs/scaling.svg.

python benchmarks/figures.py [FOLDER]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

HERE = Path(__file__).parent
BLUE, GREY = "#0072B2", "0.6"
TRAINED = ("MLP 784-64-10", "small CNN", "MLP of 20M parameters")
_READ = re.compile(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)")


def rows_of(heading: str, title: str = "") -> list[list[str]]:
    """Return the fields of the first table under a heading, or under a line in it."""
    text = (HERE / "README.md").read_text()
    _, found, section = text.partition(f"\n## {heading}\n")
    section = section.partition("\n## ")[0]
    if title:
        _, found, section = section.partition(f"\n{title}\n")
    assert found, f"benchmarks/README.md has no {title or heading!r}"
    rows = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert rows is not None, f"no table under {title or heading!r}"
    cells = [
        [cell.strip() for cell in line.strip("|\n ").split("|")] for line in rows[0].splitlines()
    ]
    return cells[2:]


def table(heading: str, title: str = "") -> dict[str, list[str]]:
    """The same: by row, its fields."""
    return {row[0]: row[1:] for row in rows_of(heading, title)}


def exact(panel: Any) -> None:
    found = table("How far from one device")
    shown = {
        "raw DDP": "torch, raw DDP", "Accelerate": "torch, Accelerate",
        "Fabric": "torch, Lightning Fabric", "dream": "torch, dream",
        "Keras, raw\nMirrored": "Keras fit, raw MirroredStrategy",
        "Keras,\ndream": "Keras fit, dream, one process",
    }  # fmt: skip
    for place, (label, row) in enumerate(shown.items()):
        value = float(found[row][0])
        panel.bar(place, value, color=BLUE if "dream" in label else GREY)
        panel.text(place, value * 1.3, found[row][0], ha="center", fontsize="x-small")
    panel.set_xticks(range(len(shown)), shown, fontsize="x-small", rotation=30)
    panel.set(yscale="log", ylim=(1e-8, 10), title="Exact: furthest from one device,\n2 replicas")


def steps(panel: Any, heading: str, title: str) -> None:
    for place, model in enumerate(TRAINED):
        rows = table(heading, f"{model}, loader in the loop")
        for offset, row, color in ((-0.2, "raw DDP again", GREY), (0.2, "dream, own loop", BLUE)):
            read = _READ.match(rows[row][1])
            assert read is not None
            middle, low, high = map(float, read.groups())
            panel.bar(place + offset, middle, 0.38, color=color)
            spread = [[middle - low], [high - middle]]
            panel.errorbar(place + offset, middle, spread, color="0.2", linewidth=1, capsize=2)
    panel.axhline(1.0, color="0.5", linewidth=1)
    panel.set_xticks(range(len(TRAINED)), [m.replace(" ", "\n", 1) for m in TRAINED])
    panel.tick_params(axis="x", labelsize="x-small")
    panel.set(ylim=(0, 1.4), title=title)


def grown(panel: Any, title: str, label: str, lines: dict[str, tuple[int, int]]) -> None:
    """Draw what was read, and the formula. lines: by the reduction that rows begin with, or "": the
    columns of what a rank has and of what a step takes; the formula's is the next."""
    rows = rows_of("How cost grows", title)
    for (name, (x, y)), color in zip(lines.items(), (BLUE, "#D55E00"), strict=False):
        own = [row for row in rows if not name or row[0] == name]
        sizes = [float(row[x].split()[0].replace(",", "")) for row in own]
        read, formula = ([float(row[column]) for row in own] for column in (y, y + 1))
        panel.plot(sizes, read, "o", color=color, markersize=4, label=name or "read")
        panel.plot(sizes, formula, "-", color=color, linewidth=1)
    panel.set(yscale="log", xlabel=label)
    if len(lines) > 1:
        panel.legend(fontsize="x-small", frameon=False)


def growth(figure: Figure) -> None:
    ranks, models, messages, hosts = figure.subplots(1, 4)
    grown(ranks, "Ranks of one host (reduction in shared memory):", "ranks, 2 cores", {"": (0, 3)})
    grown(models, "Models, 2 ranks:", "parameters, 2 ranks", {"": (0, 1)})
    both = {"shared_memory": (1, 2), "gloo": (1, 2)}
    title = "Messages of `strategy.communicator.all_reduce`, 2 ranks:"
    grown(messages, title, "bytes of an all-reduce, 2 ranks", both)
    grown(hosts, "Hosts with a rank each, 1,000 Mbit/s, gloo:", "hosts, 1 Gbit/s", {"": (0, 3)})
    ranks.set_ylabel("ms")
    for panel in (ranks, models, messages):
        panel.set_xscale("log")
    ranks.set_xticks((1, 2, 4, 8, 16), ("1", "2", "4", "8", "16"))
    ranks.set_yticks((3, 10, 30, 60), ("3", "10", "30", "60"))
    for axis in (ranks.xaxis, ranks.yaxis):
        axis.set_minor_locator(NullLocator())
    hosts.set(yscale="linear", ylim=(0, 70))
    figure.supxlabel("Dots: milliseconds, read. Lines: the formulas.", fontsize="x-small")


def firsts(figure: Figure) -> None:
    first, second, third = figure.subplots(1, 3)
    exact(first)
    steps(second, "What a training step costs", "A step on gloo, 2026-11-21,\nraw DDP = 1")
    steps(
        third,
        "What a step costs in shared memory",
        "In shared memory, 2026-11-21,\nraw DDP on gloo = 1",
    )
    said = "Grey: peers, or raw DDP once more. Blue: dream. Lines: quartiles."
    figure.supxlabel(said, fontsize="x-small")


def draw(path: Path, panels: Callable[[Figure], None], height: float) -> None:
    figure = Figure(figsize=(9.6, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels(figure)
    for panel in figure.axes:
        panel.title.set_fontsize("small")
        panel.xaxis.label.set_fontsize("small")
        panel.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dream"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "docs"
    draw(folder / "figures.svg", firsts, 3.4)
    draw(folder / "scaling.svg", growth, 2.8)
