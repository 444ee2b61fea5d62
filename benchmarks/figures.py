"""Draw the README's figures from the tables of benchmarks/README.md: docs/figures.svg.

python benchmarks/figures.py [FILE.svg]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
BLUE, GREY = "#0072B2", "0.6"
TRAINED = ("MLP 784-64-10", "small CNN", "MLP of 20M parameters")
_READ = re.compile(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)")


def table(heading: str, title: str = "") -> dict[str, list[str]]:
    """The first table under a heading, or under a line in it: by row, its fields."""
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
    return {row[0]: row[1:] for row in cells[2:]}


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


def draw(path: Path) -> None:
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    first, second, third = figure.subplots(1, 3)
    exact(first)
    steps(second, "What a training step costs", "No slower: a step on gloo,\nraw DDP = 1")
    steps(third, "What a step costs in shared memory", "In shared memory,\nraw DDP on gloo = 1")
    for panel in (first, second, third):
        panel.title.set_fontsize("small")
        panel.spines[["top", "right"]].set_visible(False)
    said = "Grey: peers, or raw DDP once more. Blue: dream. Lines: quartiles."
    figure.supxlabel(said, fontsize="x-small")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dream"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "docs" / "figures.svg")
